#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "philox_words.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "simd.h"

namespace shardtune::ops {
namespace {

struct DropRow {
  [[gnu::always_inline]] static inline void run(const std::uint32_t* words, std::uint32_t threshold, float scale,
                                                const float* from, float* to, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) to[i] = words[i] >= threshold ? from[i] * scale : 0.0f;
  }
};

struct AddDroppedRow {
  [[gnu::always_inline]] static inline void run(const std::uint32_t* words, std::uint32_t threshold, float scale,
                                                const float* from, float* sum, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) sum[i] += words[i] >= threshold ? from[i] * scale : 0.0f;
  }
};

/// What a kept element is multiplied by, and from which word on it is kept.
struct Rule {
  std::uint32_t threshold;
  float scale;

  explicit Rule(double probability)
      : threshold(static_cast<std::uint32_t>(std::min(std::ceil(probability * 4294967296.0), 4294967295.0))),
        // The inverse of the share of the 2^32 words that is kept, and not of 1 - p, which fp32 rounds coarsely near p = 1.
        scale(static_cast<float>(4294967296.0 / (4294967296.0 - threshold))) {}
};

/// Calls use(n, words) for each row n, words being one for each column. Elements are drawn in groups of four that share a
/// counter; a width that four does not divide begins inside a group.
template <typename Use>
void for_each_row(std::int64_t rows, std::int64_t width, const DropoutKey& key, const Use& use) {
  SHARDTUNE_CHECK(static_cast<std::int64_t>(key.samples.size()) == rows, "dropout key for {} tokens, input has {}",
                  key.samples.size(), rows);
  const std::int64_t groups = ((width + 3 + 3) / 4 + kPhiloxBlock - 1) / kPhiloxBlock * kPhiloxBlock;
  at::parallel_for(0, rows, 8, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(4 * groups));
    for (std::int64_t n = begin; n < end; ++n) {
      const auto token = static_cast<std::size_t>(n);
      const auto first = static_cast<std::uint64_t>(key.document_positions[token]) * static_cast<std::uint64_t>(width);
      philox_words(
          {static_cast<std::uint32_t>(key.samples[token]), key.step, key.site, static_cast<std::uint32_t>(first / 4)},
          key.seed, groups, words.data());
      use(n, words.data() + first % 4);
    }
  });
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  if (key.probability == 0) return x;
  const std::int64_t width = x.size(1);
  const at::Tensor input = x.to(at::kFloat).contiguous();
  at::Tensor result = at::empty(input.sizes(), input.options());
  const auto* from = input.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  const Rule rule(key.probability);
  for_each_row(x.size(0), width, key, [&](std::int64_t n, const std::uint32_t* words) {
    simd::run<DropRow>(words, rule.threshold, rule.scale, from + n * width, to + n * width, width);
  });
  return result.to(x.scalar_type());
}

at::Tensor dropout_both(const at::Tensor& x, const at::Tensor& gradient, at::Tensor& sum, const DropoutKey& key) {
  for (const at::Tensor* tensor : {&x, &gradient, static_cast<const at::Tensor*>(&sum)})
    SHARDTUNE_CHECK(tensor->scalar_type() == at::kFloat && tensor->is_contiguous() && tensor->sizes() == x.sizes(),
                    "dropout_both takes contiguous fp32 tensors of one shape");
  const std::int64_t width = x.size(1);
  at::Tensor result = at::empty(x.sizes(), x.options());
  const auto *xs = x.const_data_ptr<float>(), *gs = gradient.const_data_ptr<float>();
  auto *to = result.mutable_data_ptr<float>(), *sums = sum.mutable_data_ptr<float>();
  const Rule rule(key.probability);
  for_each_row(x.size(0), width, key, [&](std::int64_t n, const std::uint32_t* words) {
    simd::run<DropRow>(words, rule.threshold, rule.scale, xs + n * width, to + n * width, width);
    simd::run<AddDroppedRow>(words, rule.threshold, rule.scale, gs + n * width, sums + n * width, width);
  });
  return result;
}

}  // namespace shardtune::ops
