#pragma once
#include <filesystem>
#include <string>

#include "merge_plan.h"

namespace shardtune::exporting {

/// Everything of a merged model but the weights: index, configuration, tokenizer, model card, and merge.json, which tells what was
/// added to what. Rank 0 only; no communication.
void write_merge_files(const std::filesystem::path& folder, const MergeRequest& request, const MergeSources& sources,
                       const MergePlan& plan, const std::string& fingerprint);

}  // namespace shardtune::exporting
