#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/export/options.h"
#include "shardtune/quant/options.h"

namespace shardtune::exporting {

/// What to merge, as the options say it.
struct MergeRequest {
  std::filesystem::path base;  ///< model folder
  std::string adapters;  ///< a folder, or several with commas between them
  std::filesystem::path output;  ///< must not exist
  std::string dtype = "auto";  ///< of the result: auto (as the files) | float32 | bfloat16
  bool quantised_by_option = false;  ///< `quant` was given; otherwise the adapters' folders say what their base was
  quant::QuantOptions quant{};
  std::int64_t vocabulary = 0;  ///< rows that the adapters' table and head were grown to; 0: as the base has them
  MergeOptions merge{};
};

/// What was done. The same on every rank.
struct MergeReport {
  std::string base;  ///< what the adapters were added to, in words
  std::int64_t changed = 0, tensors = 0;  ///< tensors of the result
  std::size_t files = 0;
  std::uint64_t bytes = 0;  ///< of all tensors
  bool untied = false;  ///< a tied model got a head of its own
  std::vector<std::string> notices;
};

/// Adds adapters to their base and writes a Hugging Face model folder, which appears when it is complete. Every rank reads,
/// computes and writes blocks of rows at their places in the files, so that none ever holds a whole tensor of the model, and
/// the files have the same bytes for any number of ranks. As PEFT's merge_and_unload: W + (B A) * scale in fp32, rounded once;
/// DoRA: the rows of that times magnitude / norm. Several adapters: W + (B1 B2 ..) ([w1 s1 A1; w2 s2 A2; ..]), as after
/// add_weighted_adapter(combination_type="cat"). The folder must be on a file system that all ranks see. Errors are AgreedError.
/// Collective.
MergeReport merge(const MergeRequest& request, comm::Communicator& communicator);

}  // namespace shardtune::exporting
