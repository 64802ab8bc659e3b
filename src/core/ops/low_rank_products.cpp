#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "elements.h"
#include "gemm.h"
#include "low_rank_paths.h"
#include "low_rank_rows.h"

namespace shardtune::ops::low_rank {
namespace {

/// Rows whose fp32 copies exist at a time.
constexpr std::int64_t kBlockRows = 256;

/// Calls visit(first, count) for the blocks of `rows`.
template <typename F>
void for_each_block(std::int64_t rows, F visit) {
  for (std::int64_t first = 0; first < rows; first += kBlockRows) visit(first, std::min(kBlockRows, rows - first));
}

/// Calls use(row, words) for each row of a block.
template <typename F>
void for_each_row(const at::Tensor& x, std::int64_t first, std::int64_t count, const DropoutKey& key, F use) {
  at::parallel_for(0, count, 8, [&](std::int64_t begin, std::int64_t end) {
    auto words = words_for(key, x.size(0), x.size(1));
    for (std::int64_t i = begin; i < end; ++i) use(i, words ? words->row(first + i) : nullptr);
  });
}

/// Rows of x in fp32, masked by `key`.
at::Tensor wide_rows(const at::Tensor& x, std::int64_t first, std::int64_t count, const DropoutKey& key) {
  const std::int64_t width = x.size(1);
  at::Tensor out = at::empty({count, width}, x.options().dtype(at::kFloat));
  if (x.is_meta()) return out;
  auto* to = out.mutable_data_ptr<float>();
  with_element(x.scalar_type(), [&](auto element) {
    const auto* from = data(x, element) + first * width;
    for_each_row(x, first, count, key, [&](std::int64_t i, const std::uint32_t* words) {
      simd::run<WidenRow>(from + i * width, words, DropoutRule(key.probability), to + i * width, width);
    });
  });
  return out;
}

/// Rows of y += the masked sum, rounded once; where y is scaled nothing is masked.
void add_rows(at::Tensor& y, const at::Tensor& sum, std::int64_t first, const DropoutKey& key,
              const float* y_scale = nullptr) {
  if (y.is_meta()) return;
  const std::int64_t width = y.size(1);
  const auto* from = sum.const_data_ptr<float>();
  with_element(y.scalar_type(), [&](auto element) {
    auto* to = mutable_data(y, element) + first * width;
    for_each_row(y, first, sum.size(0), key, [&](std::int64_t i, const std::uint32_t* words) {
      if (y_scale != nullptr) simd::run<AddToScaledRow>(from + i * width, y_scale, to + i * width, width);
      else simd::run<AddMaskedRow>(from + i * width, words, DropoutRule(key.probability), to + i * width, width);
    });
  });
}

/// factor * a b.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, float factor) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  gemm_fp32(out, a, b, /*add=*/false);
  return factor == 1 ? out : out.mul_(factor);
}

const DropoutKey kNothingDropped;

}  // namespace

void add_by_products(at::Tensor& y, const at::Tensor& x, const Factors& factors) {
  for_each_block(x.size(0), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor reduced = product(wide_rows(x, first, count, factors.key), factors.a.t(), factors.scaling);
    add_rows(y, product(reduced, factors.b, 1), first, kNothingDropped, factors.y_scale);
  });
}

void backward_by_products(const at::Tensor& x, const at::Tensor& gradient, const Factors& factors,
                          at::Tensor& x_gradient, at::Tensor* a_gradient, at::Tensor* b_gradient) {
  for_each_block(x.size(0), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor wide = wide_rows(x, first, count, factors.key);
    const at::Tensor wide_gradient = wide_rows(gradient, first, count, kNothingDropped);
    const at::Tensor reduced_gradient = product(wide_gradient, factors.b.t(), factors.scaling);
    add_rows(x_gradient, product(reduced_gradient, factors.a, 1), first, factors.key);
    if (a_gradient != nullptr) gemm_fp32(*a_gradient, reduced_gradient.t(), wide, /*add=*/true);
    if (b_gradient != nullptr)
      gemm_fp32(*b_gradient, wide_gradient.t(), product(wide, factors.a.t(), factors.scaling), /*add=*/true);
  });
}

}  // namespace shardtune::ops::low_rank
