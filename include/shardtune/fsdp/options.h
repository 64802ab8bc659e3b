#pragma once
#include <cstdint>
#include <string>

namespace shardtune::fsdp {

/// Names and meanings as in Accelerate's FSDP plugin.
struct FsdpOptions {
  std::int64_t version = 1;  ///< whose options are meant: FSDP 1 names a strategy, FSDP 2 says reshard_after_forward
  std::string sharding_strategy = "FULL_SHARD";
  std::int64_t shard_group_size = 0;  ///< ranks that hold one copy together; 0: what the strategy says
  std::string reshard_after_forward;  ///< "", true, false, or a number of ranks
  std::string backward_prefetch = "BACKWARD_PRE";  ///< BACKWARD_PRE | BACKWARD_POST | NO_PREFETCH
  bool forward_prefetch = true;
  std::string auto_wrap_policy = "TRANSFORMER_BASED_WRAP";  ///< or SIZE_BASED_WRAP, NO_WRAP
  std::string transformer_layer_cls_to_wrap = "LlamaDecoderLayer";
  std::int64_t min_num_params = 100'000'000;  ///< of a unit under SIZE_BASED_WRAP
  std::string reduce_dtype = "float32";  ///< float32 | bfloat16: in which gradients travel
  std::string share_base_on_node = "auto";  ///< auto | true | false
};

}  // namespace shardtune::fsdp
