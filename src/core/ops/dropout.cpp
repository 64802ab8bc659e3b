#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/philox.h"

namespace shardtune::ops {
namespace {

/// One token's row: `first` is position * width, the number of the row's first element in its document. Elements are drawn in
/// groups of four that share a counter; a width that four does not divide begins inside a group.
void drop_row(const float* from, float* to, std::int64_t width, std::uint64_t first,
              const std::array<std::uint32_t, 4>& base, std::uint64_t seed, std::uint32_t threshold, float scale) {
  std::int64_t column = 0;
  while (column < width) {
    const std::uint64_t element = first + static_cast<std::uint64_t>(column);
    const auto words = philox4x32({base[0], base[1], base[2], static_cast<std::uint32_t>(element / 4)}, seed);
    for (std::uint64_t word = element % 4; word < 4 && column < width; ++word, ++column)
      to[column] = words[word] >= threshold ? from[column] * scale : 0.0f;
  }
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  if (key.probability == 0) return x;
  const std::int64_t rows = x.size(0), width = x.size(1);
  SHARDTUNE_CHECK(static_cast<std::int64_t>(key.samples.size()) == rows, "dropout key for {} tokens, input has {}",
                  key.samples.size(), rows);
  const at::Tensor input = x.to(at::kFloat).contiguous();
  at::Tensor result = at::empty({rows, width}, input.options());
  const auto* from = input.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  const auto threshold = static_cast<std::uint32_t>(std::min(std::ceil(key.probability * 4294967296.0), 4294967295.0));
  // The inverse of the share of the 2^32 words that is kept, and not of 1 - p, which fp32 rounds coarsely near p = 1.
  const auto scale = static_cast<float>(4294967296.0 / (4294967296.0 - threshold));
  at::parallel_for(0, rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const auto token = static_cast<std::size_t>(n);
      const std::array<std::uint32_t, 4> base{static_cast<std::uint32_t>(key.samples[token]), key.step, key.site, 0};
      const auto first = static_cast<std::uint64_t>(key.document_positions[token]) * static_cast<std::uint64_t>(width);
      drop_row(from + n * width, to + n * width, width, first, base, key.seed, threshold, scale);
    }
  });
  return result.to(x.scalar_type());
}

}  // namespace shardtune::ops
