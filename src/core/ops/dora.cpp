#include "shardtune/core/dora.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "elements.h"
#include "gemm.h"
#include "low_rank_paths.h"
#include "low_rank_rows.h"
#include "shardtune/core/shape_only.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

/// Columns that one thread handles at a time where sums go over rows.
constexpr std::int64_t kColumns = 512;

/// fp32 and bf16 as they are, anything else in fp32; contiguous.
at::Tensor as_rows(const at::Tensor& x) {
  return x.to(x.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat).contiguous();
}

/// Sum of squares in fp64, in eight lanes whose order is written out.
[[gnu::always_inline]] inline double squares(const float* row, std::int64_t width) {
  double lanes[simd::kLanes] = {};
  std::int64_t i = 0;
  for (; i + simd::kLanes <= width; i += simd::kLanes)
    for (std::int64_t lane = 0; lane < simd::kLanes; ++lane) {
      const auto value = static_cast<double>(row[i + lane]);
      lanes[lane] += value * value;
    }
  for (; i < width; ++i) lanes[0] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/// Squares of one row w + sum over k of factors[k] * matrix[k]; `sum` is work space of `width` elements.
struct MergedRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* w, const float* factors, const float* matrix,
                                                std::int64_t rank, std::int64_t width, float* sum, double* out) {
    for (std::int64_t i = 0; i < width; ++i) sum[i] = simd::widen(w[i]);
    low_rank::add_combination(factors, matrix, rank, width, sum);
    *out = squares(sum, width);
  }
};

struct ScaleRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* from, const float* scale, T* to, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) to[i] = simd::rounded<T>(simd::widen(from[i]) * scale[i]);
  }
};

struct AddScaledRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* from, const float* scale, T* to, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i)
      to[i] = simd::rounded<T>(simd::widen(to[i]) + simd::widen(from[i]) * scale[i]);
  }
};

struct DotRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* a, const T* b, double* sums, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i)
      sums[i] += static_cast<double>(simd::widen(a[i])) * static_cast<double>(simd::widen(b[i]));
  }
};

/// The low-rank part of the rows: row i's is factors[i * factors_step ...] times matrix + i * matrix_step, [rank, in].
struct LowRankRows {
  const float* factors;
  std::int64_t factors_step;
  const float* matrix;
  std::int64_t matrix_step, rank;
};

/// Norms of rows [first, first + count).
void norms_of_rows(const at::Tensor& w, const LowRankRows& low, std::int64_t first, std::int64_t count, float* out) {
  const std::int64_t width = w.size(1);
  with_element(w.scalar_type(), [&](auto element) {
    const auto* rows = data(w, element) + first * width;
    at::parallel_for(0, count, 8, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> sum(static_cast<std::size_t>(width));
      for (std::int64_t row = begin; row < end; ++row) {
        double square = 0;
        simd::run<MergedRow>(rows + row * width, low.factors + row * low.factors_step,
                             low.matrix + row * low.matrix_step, low.rank, width, sum.data(), &square);
        out[first + row] = static_cast<float>(std::sqrt(square));
      }
    });
  });
}

/// What the CUDA path allocates: a product for a block of rows, and its sums.
at::Tensor norms_twin(const at::Tensor& w, const LowRank& factors) {
  constexpr std::int64_t kBlockRows = 2048;
  at::Tensor norms = at::empty({w.size(0)}, w.options().dtype(at::kFloat));
  const at::Tensor a = factors.a.to(w.scalar_type()), b = factors.b.to(w.scalar_type());
  for (std::int64_t first = 0; first < w.size(0); first += kBlockRows)
    at::addmm(w.narrow(0, first, std::min(kBlockRows, w.size(0) - first)),
              b.narrow(0, first, std::min(kBlockRows, w.size(0) - first)), a);
  return norms;
}

template <typename Row>
void for_each_row(const at::Tensor& from, const at::Tensor& scale, at::Tensor& to) {
  if (to.is_meta()) return;
  const std::int64_t width = from.size(1);
  const auto* factors = scale.const_data_ptr<float>();
  with_element(from.scalar_type(), [&](auto element) {
    const auto* rows = data(from, element);
    auto* out = mutable_data(to, element);
    at::parallel_for(0, from.size(0), 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) simd::run<Row>(rows + n * width, factors, out + n * width, width);
    });
  });
}

}  // namespace

at::Tensor merged_row_norms(const at::Tensor& w, const LowRank& factors) {
  constexpr std::int64_t kLoopRank = 32, kBlockRows = 256;
  const std::int64_t out = w.size(0), in = w.size(1), rank = factors.a.size(0);
  tell_matmul(w.scalar_type(), out, rank, in);
  if (!goes_cpu_way(w)) return norms_twin(w, factors);
  const at::Tensor rows = as_rows(w), a = factors.a.to(at::kFloat).contiguous();
  const at::Tensor b = at::mul(factors.b.to(at::kFloat), factors.scaling).contiguous();
  at::Tensor norms = at::empty({out}, a.options());
  if (rank <= kLoopRank) {
    if (!norms.is_meta())
      norms_of_rows(rows, {b.const_data_ptr<float>(), rank, a.const_data_ptr<float>(), 0, rank}, 0, out,
                    norms.mutable_data_ptr<float>());
    return norms;
  }
  constexpr float kOne = 1;
  for (std::int64_t first = 0; first < out; first += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, out - first);
    at::Tensor product = at::empty({count, in}, a.options());
    gemm_fp32(product, b.narrow(0, first, count), a, /*add=*/false);
    if (!norms.is_meta())
      norms_of_rows(rows, {&kOne, 0, product.const_data_ptr<float>(), in, 1}, first, count,
                    norms.mutable_data_ptr<float>());
  }
  return norms;
}

at::Tensor scaled_columns(const at::Tensor& x, const at::Tensor& scale) {
  tell_rows(x, 2);
  if (x.is_meta()) return at::empty_like(x);
  const at::Tensor rows = as_rows(x);
  at::Tensor result = at::empty_like(rows);
  for_each_row<ScaleRow>(rows, scale, result);
  return result.to(x.scalar_type());
}

void scale_columns(at::Tensor& x, const at::Tensor& scale) {
  tell_rows(x, 2);
  at::Tensor rows = as_rows(x);
  for_each_row<ScaleRow>(rows, scale, rows);
  if (!rows.is_same(x)) x.copy_(rows);
}

void add_scaled_columns(at::Tensor& y, const at::Tensor& x, const at::Tensor& scale) {
  tell_rows(y, 3);
  at::Tensor rows = as_rows(y);
  for_each_row<AddScaledRow>(as_rows(x), scale, rows);
  if (!rows.is_same(y)) y.copy_(rows);
}

at::Tensor column_dots(const at::Tensor& a, const at::Tensor& b) {
  tell_rows(a, 2);
  const std::int64_t width = a.size(1);
  at::Tensor sums = at::zeros({width}, a.options().dtype(at::kDouble));
  if (sums.is_meta()) return sums;
  const at::Tensor left = as_rows(a), right = as_rows(b);
  auto* to = sums.mutable_data_ptr<double>();
  with_element(left.scalar_type(), [&](auto element) {
    const auto *lefts = data(left, element), *rights = data(right, element);
    at::parallel_for(0, (width + kColumns - 1) / kColumns, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin * kColumns, count = std::min(width, end * kColumns) - first;
      for (std::int64_t n = 0; n < left.size(0); ++n)
        simd::run<DotRow>(lefts + n * width + first, rights + n * width + first, to + first, count);
    });
  });
  return sums;
}

}  // namespace shardtune::ops
