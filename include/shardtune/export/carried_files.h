#pragma once
#include <filesystem>
#include <string_view>
#include <vector>

namespace shardtune::exporting {

enum class ResultKind { kAdapter, kFullModel, kMergedModel };

/// Names of the files that a result takes over from the base model's folder as they are, where that folder has them.
const std::vector<std::string_view>& carried_files(ResultKind kind);

/// Looks at them before the work starts: each can be read, and a .json file holds one JSON object. Else what comes out at the end,
/// hours later, could not be loaded. Error(kBadModel) with the path. Rank 0 only; no communication.
void check_carried_files(const std::filesystem::path& base_folder, ResultKind kind);

/// Copies them. Rank 0 only; no communication.
void copy_carried_files(const std::filesystem::path& base_folder, const std::filesystem::path& folder, ResultKind kind);

}  // namespace shardtune::exporting
