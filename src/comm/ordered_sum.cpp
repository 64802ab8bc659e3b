#include "shardtune/comm/ordered_sum.h"

#include "cuda_check.h"
#include "ordered_sum_kernel.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {
namespace {

template <typename T>
void add(std::span<double> sum, std::span<const std::byte> parts, int ranks, StreamRef stream) {
  const auto* first = reinterpret_cast<const T*>(parts.data());
  const auto elements = static_cast<std::int64_t>(sum.size());
  SHARDTUNE_CUDA_CALL(launch_ordered_sum(sum.data(), first, ranks, elements, stream.stream));
}

}  // namespace

void add_in_rank_order(std::span<double> sum, std::span<const std::byte> parts, Dtype type, int ranks,
                       StreamRef stream) {
  SHARDTUNE_CHECK(ranks > 0 && parts.size() == sum.size() * static_cast<std::size_t>(ranks) * dtype_bytes(type),
                  "sum over {} ranks: {} bytes for {} elements of {}", ranks, parts.size(), sum.size(),
                  dtype_name(type));
  SHARDTUNE_CHECK(stream.stream != nullptr, "a sum of device memory needs a stream");
  if (sum.empty()) return;
  if (type == Dtype::kF32) return add<float>(sum, parts, ranks, stream);
  if (type == Dtype::kBF16) return add<Bfloat16Bits>(sum, parts, ranks, stream);
  SHARDTUNE_CHECK(type == Dtype::kF64, "no sum over elements of {}", dtype_name(type));
  add<double>(sum, parts, ranks, stream);
}

}  // namespace shardtune::comm
