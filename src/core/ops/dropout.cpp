#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "low_rank_rows.h"

namespace shardtune::ops {
at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  if (key.probability == 0) return x;
  const std::int64_t width = x.size(1);
  const at::Tensor input = x.to(at::kFloat).contiguous();
  at::Tensor result = at::empty(input.sizes(), input.options());
  if (input.is_meta()) return result.to(x.scalar_type());
  const auto* from = input.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0), 8, [&](std::int64_t begin, std::int64_t end) {
    DropoutWords words(key, x.size(0), width);
    for (std::int64_t n = begin; n < end; ++n)
      simd::run<low_rank::WidenRow>(from + n * width, words.row(n), DropoutRule(key.probability), to + n * width,
                                    width);
  });
  return result.to(x.scalar_type());
}

}  // namespace shardtune::ops
