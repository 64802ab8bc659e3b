#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "elements.h"
#include "low_rank_paths.h"
#include "low_rank_rows.h"

namespace shardtune::ops::low_rank {
namespace {

/// Rows that the backward handles together: their fp32 copies stay in the first cache levels.
constexpr std::int64_t kRows = 8;

/// What the loops need besides the rows themselves; matrices are [rank, in] and, B transposed, [rank, out].
struct Sizes {
  std::int64_t in, out, rank;
};

/// y (times y_scale, when given) += scaling * (x A^T) B^T for one row; `wide` holds x, `sum` is work space of `out` elements.
struct ForwardRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const float* wide, const float* a, const float* b, float scaling,
                                                const float* y_scale, Sizes sizes, float* products, float* sum, T* y) {
    dots(wide, a, sizes.rank, sizes.in, products);
    for (std::int64_t k = 0; k < sizes.rank; ++k) products[k] *= scaling;
    if constexpr (std::is_same_v<T, float>) {
      if (y_scale != nullptr)
        for (std::int64_t i = 0; i < sizes.out; ++i) y[i] *= y_scale[i];
      add_combination(products, b, sizes.rank, sizes.out, y);
    } else {
      for (std::int64_t i = 0; i < sizes.out; ++i) sum[i] = 0;
      add_combination(products, b, sizes.rank, sizes.out, sum);
      if (y_scale != nullptr) AddToScaledRow::run(sum, y_scale, y, sizes.out);
      else AddMaskedRow::run(sum, nullptr, DropoutRule(0), y, sizes.out);
    }
  }
};

/// For one row: products [rank] = scaling * x A^T, which B's gradient takes, and gradients [rank] = scaling * gradient B.
struct ReduceRow {
  [[gnu::always_inline]] static inline void run(const float* x, const float* gradient, const float* a, const float* b,
                                                float scaling, Sizes sizes, float* products, float* gradients) {
    dots(x, a, sizes.rank, sizes.in, products);
    dots(gradient, b, sizes.rank, sizes.out, gradients);
    for (std::int64_t k = 0; k < sizes.rank; ++k) products[k] *= scaling;
    for (std::int64_t k = 0; k < sizes.rank; ++k) gradients[k] *= scaling;
  }
};

struct CombineRow {
  [[gnu::always_inline]] static inline void run(const float* factors, const float* matrix, std::int64_t rank,
                                                std::int64_t width, float* sum) {
    for (std::int64_t i = 0; i < width; ++i) sum[i] = 0;
    add_combination(factors, matrix, rank, width, sum);
  }
};

struct OuterRows {
  [[gnu::always_inline]] static inline void run(const float* factors, const float* rows, std::int64_t count,
                                                std::int64_t rank, std::int64_t width, float* sums) {
    add_outer(factors, rows, count, rank, width, sums);
  }
};

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count); }

/// The backward over a range of rows; sums of A's and B's gradients are those of the range.
template <typename T>
struct Backward {
  const T *x, *gradient;
  T* x_gradient;
  const float *a, *b;
  float scaling;
  Sizes sizes;
  DropoutRule rule;
  const DropoutKey& key;
  std::int64_t rows;

  void run(std::int64_t begin, std::int64_t end, float* a_sum, float* b_sum) const {
    auto words = words_for(key, rows, sizes.in);
    std::vector<float> wide(floats(kRows * sizes.in)), wide_gradient(floats(kRows * sizes.out)), sum(floats(sizes.in));
    std::vector<float> products(floats(kRows * sizes.rank)), gradients(floats(kRows * sizes.rank));
    for (; begin < end; begin += kRows) {
      const std::int64_t count = std::min(kRows, end - begin);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t n = begin + i;
        const std::uint32_t* drawn = words ? words->row(n) : nullptr;
        float *row = wide.data() + i * sizes.in, *row_gradient = wide_gradient.data() + i * sizes.out;
        float *product = products.data() + i * sizes.rank, *reduced = gradients.data() + i * sizes.rank;
        const std::uint32_t* none = nullptr;
        simd::run<WidenRow>(x + n * sizes.in, drawn, rule, row, sizes.in);
        simd::run<WidenRow>(gradient + n * sizes.out, none, rule, row_gradient, sizes.out);
        simd::run<ReduceRow>(row, row_gradient, a, b, scaling, sizes, product, reduced);
        simd::run<CombineRow>(reduced, a, sizes.rank, sizes.in, sum.data());
        simd::run<AddMaskedRow>(sum.data(), drawn, rule, x_gradient + n * sizes.in, sizes.in);
      }
      if (a_sum != nullptr) add_outer(gradients, wide, count, sizes.in, a_sum);
      if (b_sum != nullptr) add_outer(products, wide_gradient, count, sizes.out, b_sum);
    }
  }

  void add_outer(const std::vector<float>& factors, const std::vector<float>& row, std::int64_t count,
                 std::int64_t width, float* sums) const {
    simd::run<OuterRows>(factors.data(), row.data(), count, sizes.rank, width, sums);
  }
};

/// One range of rows for each thread, and sums [threads, rank, width] when `wanted`; they are added in the order of the ranges.
at::Tensor range_sums(const at::Tensor* wanted, std::int64_t ranges, std::int64_t rank, std::int64_t width) {
  return wanted != nullptr ? at::zeros({ranges, rank, width}, wanted->options()) : at::Tensor();
}

template <typename Use>
void for_each_range(std::int64_t rows, std::int64_t ranges, const Use& use) {
  at::parallel_for(0, ranges, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) use(r, rows * r / ranges, rows * (r + 1) / ranges);
  });
}

float* part(at::Tensor& sums, std::int64_t range) {
  return sums.defined() ? sums.mutable_data_ptr<float>() + range * sums.size(1) * sums.size(2) : nullptr;
}

}  // namespace

void add_by_loops(at::Tensor& y, const at::Tensor& x, const Factors& factors) {
  if (x.is_meta()) return;
  const Sizes sizes{x.size(1), y.size(1), factors.a.size(0)};
  with_element(x.scalar_type(), [&](auto element) {
    const auto* from = data(x, element);
    auto* to = mutable_data(y, element);
    const auto *a = factors.a.const_data_ptr<float>(), *b = factors.b.const_data_ptr<float>();
    at::parallel_for(0, x.size(0), kRows, [&](std::int64_t begin, std::int64_t end) {
      auto words = words_for(factors.key, x.size(0), sizes.in);
      std::vector<float> wide(floats(sizes.in)), sum(floats(sizes.out)), products(floats(sizes.rank));
      for (std::int64_t n = begin; n < end; ++n) {
        simd::run<WidenRow>(from + n * sizes.in, words ? words->row(n) : nullptr, DropoutRule(factors.key.probability),
                            wide.data(), sizes.in);
        simd::run<ForwardRow>(wide.data(), a, b, factors.scaling, factors.y_scale, sizes, products.data(), sum.data(),
                              to + n * sizes.out);
      }
    });
  });
}

void backward_by_loops(const at::Tensor& x, const at::Tensor& gradient, const Factors& factors, at::Tensor& x_gradient,
                       at::Tensor* a_gradient, at::Tensor* b_gradient) {
  const Sizes sizes{x.size(1), gradient.size(1), factors.a.size(0)};
  const std::int64_t ranges = at::get_num_threads();
  at::Tensor a_sums = range_sums(a_gradient, ranges, sizes.rank, sizes.in);
  at::Tensor b_sums = range_sums(b_gradient, ranges, sizes.rank, sizes.out);
  if (x.is_meta()) return;
  with_element(x.scalar_type(), [&](auto element) {
    const Backward<decltype(element)> backward{.x = data(x, element),
                                               .gradient = data(gradient, element),
                                               .x_gradient = mutable_data(x_gradient, element),
                                               .a = factors.a.const_data_ptr<float>(),
                                               .b = factors.b.const_data_ptr<float>(),
                                               .scaling = factors.scaling,
                                               .sizes = sizes,
                                               .rule = DropoutRule(factors.key.probability),
                                               .key = factors.key,
                                               .rows = x.size(0)};
    for_each_range(x.size(0), ranges, [&](std::int64_t range, std::int64_t begin, std::int64_t end) {
      backward.run(begin, end, part(a_sums, range), part(b_sums, range));
    });
  });
  for (std::int64_t range = 0; range < ranges; ++range) {
    if (a_gradient != nullptr) a_gradient->add_(a_sums[range]);
    if (b_gradient != nullptr) b_gradient->add_(b_sums[range].t());
  }
}

}  // namespace shardtune::ops::low_rank
