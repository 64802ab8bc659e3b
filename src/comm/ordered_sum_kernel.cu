#include "ordered_sum_kernel.h"

namespace shardtune::comm {
namespace {

constexpr int kThreads = 256;
/// Enough to fill any device; larger sums go round.
constexpr std::int64_t kMaxBlocks = 4096;

/// A thread adds up whole elements, so that the order is the ranks' and nothing else.
template <typename T>
__global__ void ordered_sum(double* sum, const T* parts, int ranks, std::int64_t elements) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride)
    sum[i] = add_parts(sum[i], parts + i, ranks, elements);
}

}  // namespace

template <typename T>
cudaError_t launch_ordered_sum(double* sum, const T* parts, int ranks, std::int64_t elements, cudaStream_t stream) {
  const std::int64_t needed = (elements + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks);
  ordered_sum<<<blocks, kThreads, 0, stream>>>(sum, parts, ranks, elements);
  return cudaGetLastError();
}

template cudaError_t launch_ordered_sum(double*, const double*, int, std::int64_t, cudaStream_t);
template cudaError_t launch_ordered_sum(double*, const float*, int, std::int64_t, cudaStream_t);
template cudaError_t launch_ordered_sum(double*, const Bfloat16Bits*, int, std::int64_t, cudaStream_t);

}  // namespace shardtune::comm
