#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/fsdp/options.h"
#include "shardtune/model/parameters.h"

namespace shardtune::fsdp {

/// When a unit's full tensors are let go after its forward.
enum class Reshard {
  kAfterForward,  ///< FULL_SHARD, HYBRID_SHARD: backward gathers again
  kAfterBackward,  ///< SHARD_GRAD_OP, _HYBRID_SHARD_ZERO2: they stay
  kToInnerGroup,  ///< a number of ranks: spread over a smaller group, backward gathers there
};

enum class BackwardPrefetch {
  kPre,  ///< the next unit is fetched before this one's gradients are computed: two buffers
  kPost,  ///< after this one was reduced and let go: one buffer
  kNone,
};

/// How the model is cut and moved: values only, worked out from the options before anything is built.
struct Policy {
  int shard_size = 0;  ///< ranks of a shard group; 0: all
  int inner_size = 0;  ///< ranks of an inner group; 0: as the shard group
  Reshard reshard = Reshard::kAfterForward;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  /// Layers in a block that keep one input, its first one's; backward runs forward again through the block before it goes
  /// back over it. 1: every layer keeps its input.
  std::int64_t input_block = 1;
};

/// `ranks` of the job, `node_ranks` of this node (HYBRID strategies shard inside a node). Error(kUsage) for a mesh that
/// cannot be.
Policy make_policy(const FsdpOptions& options, int ranks, int node_ranks);

/// The stages (embedding, layers, head: indices of `stages`) of each unit, in order. TRANSFORMER_BASED_WRAP: one each;
/// SIZE_BASED_WRAP: consecutive layers until a unit has at least min_num_params; NO_WRAP: one unit.
std::vector<std::vector<std::size_t>> wrap(const std::vector<model::UnitSpec>& stages, const FsdpOptions& options);

}  // namespace shardtune::fsdp
