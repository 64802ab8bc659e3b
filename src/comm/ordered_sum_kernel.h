#pragma once
#include <cuda_runtime_api.h>

#include "ordered_sum_element.h"

namespace shardtune::comm {

/// Queues add_in_rank_order() for T in double, float, Bfloat16Bits; `elements` is not 0. Returns what CUDA says about the
/// launch.
template <typename T>
cudaError_t launch_ordered_sum(double* sum, const T* parts, int ranks, std::int64_t elements, cudaStream_t stream);

}  // namespace shardtune::comm
