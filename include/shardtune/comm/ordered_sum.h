#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "shardtune/comm/communicator.h"
#include "shardtune/core/dtype.h"

// Of the CUDA parts (shardtune_comm_nccl): only built with the CUDA toolkit and NCCL.
namespace shardtune::comm {

/// sum[i] += parts[0][i], then += parts[1][i], and so on to the last rank, in fp64: the receiving half of a reduce-scatter.
/// `parts` is what an exchange brought, [ranks, elements] of `type` (kF32, kBF16 or kF64); `sum` has `elements`. Both are
/// device memory and must live until the work queued here, on `stream`, is done. Throws Error(kBadNode) when CUDA does not
/// take the work.
void add_in_rank_order(std::span<double> sum, std::span<const std::byte> parts, Dtype type, int ranks,
                       StreamRef stream);

}  // namespace shardtune::comm
