#pragma once
#include <string>

namespace shardtune::exporting {

/// What `shardtune merge` is told, besides the model, the adapters and the folder of the result.
struct MergeOptions {
  std::string adapter_weights;  ///< comma-separated numbers, one an adapter; "": 1 each
  std::string merge_base = "trained";  ///< trained: the base as the adapter saw it (dequantised) | original: the files
  std::string max_shard_size = "50GB";  ///< of an output file: a number with KB, MB, GB or TB, or bytes
};

}  // namespace shardtune::exporting
