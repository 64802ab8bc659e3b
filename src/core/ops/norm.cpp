#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "elements.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/shape_only.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

/// Sum of a[i] * b[i] in eight fixed lanes: vectorises without reassociation flags and always adds in the same order.
[[gnu::always_inline]] inline float dot(const float* a, const float* b, std::int64_t n) {
  simd::Floats lanes = {}, x, y;
  std::int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    std::memcpy(&x, a + i, sizeof x);
    std::memcpy(&y, b + i, sizeof y);
    lanes += x * y;
  }
  double sum = 0;
  for (int lane = 0; lane < simd::kLanes; ++lane) sum += lanes[lane];
  for (; i < n; ++i) sum += a[i] * b[i];
  return static_cast<float>(sum);
}

[[gnu::always_inline]] inline float inverse_rms(const float* x, std::int64_t width, float epsilon) {
  return 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + epsilon);
}

/// x in fp32: as it is, or widened into `space`.
template <typename T>
[[gnu::always_inline]] inline const float* wide_row(const T* x, float* space, std::int64_t width) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    for (std::int64_t d = 0; d < width; ++d) space[d] = simd::widen(x[d]);
    return space;
  }
}

/// Rows of x over their root mean square, rounded, times w. `space` holds a row.
struct NormRows {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* x, const T* w, T* to, float* space, std::int64_t rows,
                                                std::int64_t width, float epsilon) {
    for (std::int64_t n = 0; n < rows; ++n, x += width, to += width) {
      const float* row = wide_row(x, space, width);
      const float scale = inverse_rms(row, width, epsilon);
      for (std::int64_t d = 0; d < width; ++d)
        to[d] = simd::rounded<T>(simd::widen(simd::rounded<T>(row[d] * scale)) * simd::widen(w[d]));
    }
  }
};

/// `space` holds three rows.
struct NormBackwardRows {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* g, const T* x, const float* w, T* to, float* space,
                                                std::int64_t rows, std::int64_t width, float epsilon) {
    float* weighted = space + 2 * width;
    for (std::int64_t n = 0; n < rows; ++n, g += width, x += width, to += width) {
      const float *row = wide_row(x, space, width), *gradient = wide_row(g, space + width, width);
      const float scale = inverse_rms(row, width, epsilon);
      for (std::int64_t d = 0; d < width; ++d) weighted[d] = gradient[d] * w[d];
      const float shared = dot(weighted, row, width) * scale * scale / static_cast<float>(width);
      for (std::int64_t d = 0; d < width; ++d) to[d] = simd::rounded<T>(scale * (weighted[d] - row[d] * shared));
    }
  }
};

/// x [rows, heads, 2 * half] turned by the angles of each row; every step rounds to x's type.
struct RotateRows {
  template <typename T>
  [[gnu::always_inline]] static inline void run(T* x, const T* cosine, const T* sine, std::int64_t rows,
                                                std::int64_t heads, std::int64_t half, float sign) {
    for (std::int64_t n = 0; n < rows; ++n, cosine += half, sine += half)
      for (std::int64_t h = 0; h < heads; ++h, x += 2 * half) {
        // Restricted, because tests for overlap would cost as much as these short loops.
        T* __restrict left = x, * __restrict right = x + half;
        for (std::int64_t i = 0; i < half; ++i) {
          const float low = simd::widen(left[i]), high = simd::widen(right[i]);
          const float c = simd::widen(cosine[i]), s = simd::widen(sine[i]) * sign;
          left[i] = simd::rounded<T>(product<T>(low, c) - product<T>(high, s));
          right[i] = simd::rounded<T>(product<T>(high, c) + product<T>(low, s));
        }
      }
  }

 private:
  template <typename T>
  [[gnu::always_inline]] static inline float product(float a, float b) {
    return simd::widen(simd::rounded<T>(a * b));
  }
};

constexpr std::int64_t kGrain = 16;

/// fp32 and bf16 as they are, contiguous; anything else in fp32.
at::Tensor as_rows(const at::Tensor& x) {
  const at::Tensor rows = x.contiguous();
  const bool wide = rows.scalar_type() != at::kFloat && rows.scalar_type() != at::kBFloat16;
  return wide && goes_cpu_way(rows) ? rows.to(at::kFloat) : rows;
}

/// Work space of one thread.
std::vector<float> space_for(std::int64_t rows, std::int64_t width) {
  return std::vector<float>(static_cast<std::size_t>(rows * width));
}

/// The gradient of the norm's weight, added to `sink` [width].
void add_norm_weight_gradient(at::Tensor& sink, const at::Tensor& gradient, const at::Tensor& x, float epsilon) {
  if (!goes_cpu_way(x)) return;
  const at::Tensor input = x.to(at::kFloat).contiguous(), g = gradient.to(at::kFloat).contiguous();
  if (sink.is_meta()) return;
  const auto *xs = input.const_data_ptr<float>(), *gs = g.const_data_ptr<float>();
  auto* to = sink.mutable_data_ptr<float>();
  const std::int64_t width = x.size(1);
  for (std::int64_t n = 0; n < x.size(0); ++n, xs += width, gs += width) {
    const float scale = inverse_rms(xs, width, epsilon);
    for (std::int64_t d = 0; d < width; ++d) to[d] += gs[d] * (xs[d] * scale);
  }
}

/// Rows of `result`, the gradient of the norm's input; w is fp32.
void backward_rows(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& w, at::Tensor& result,
                   float epsilon) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  with_element(x.scalar_type(), [&](auto element) {
    const auto *xs = data(x, element), *gs = data(gradient, element);
    const auto* ws = w.const_data_ptr<float>();
    auto* to = mutable_data(result, element);
    at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      auto space = space_for(3, width);
      const std::int64_t at = begin * width;
      simd::run<NormBackwardRows>(gs + at, xs + at, ws, to + at, space.data(), end - begin, width, epsilon);
    });
  });
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor input = as_rows(x), w = weight.to(input.scalar_type()).contiguous();
  at::Tensor normed = at::empty({rows, width}, input.options());
  tell_rows(x, 2);
  if (x.is_meta()) return normed.to(x.scalar_type());
  with_element(input.scalar_type(), [&](auto element) {
    const auto *from = data(input, element), *ws = data(w, element);
    auto* to = mutable_data(normed, element);
    at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      auto space = space_for(1, width);
      simd::run<NormRows>(from + begin * width, ws, to + begin * width, space.data(), end - begin, width,
                          static_cast<float>(epsilon));
    });
  });
  return normed.to(x.scalar_type());
}

at::Tensor rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             at::Tensor* weight_sink) {
  const at::Tensor input = as_rows(x), g = gradient.to(input.scalar_type()).contiguous();
  const at::Tensor w = weight.to(at::kFloat).contiguous();
  at::Tensor result = at::empty(x.sizes(), input.options());
  tell_rows(x, 3);
  if (!x.is_meta()) backward_rows(g, input, w, result, static_cast<float>(epsilon));
  if (weight_sink != nullptr) add_norm_weight_gradient(*weight_sink, gradient, x, static_cast<float>(epsilon));
  return result.to(x.scalar_type());
}

void apply_rotary(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, bool inverse) {
  tell_rows(x, 2);
  // fp16 takes the way of whole tensors on the CPU, which has workspace.
  if (x.is_meta() && (!goes_cpu_way(x) || x.scalar_type() != at::kHalf)) return;
  const std::int64_t heads = x.size(1), half = x.size(-1) / 2;
  if (!has_rows(x) || cosine.scalar_type() != x.scalar_type()) {
    at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
    const at::Tensor c = cosine.unsqueeze(1), s = inverse ? at::neg(sine).unsqueeze(1) : sine.unsqueeze(1);
    const at::Tensor turned = at::sub(low * c, high * s);
    high.mul_(c).add_(low * s);
    low.copy_(turned);
    return;
  }
  const at::Tensor c = cosine.contiguous(), s = sine.contiguous();
  with_element(x.scalar_type(), [&](auto element) {
    auto* xs = mutable_data(x, element);
    const auto *cs = data(c, element), *ss = data(s, element);
    at::parallel_for(0, x.size(0), kGrain, [&](std::int64_t begin, std::int64_t end) {
      simd::run<RotateRows>(xs + begin * heads * 2 * half, cs + begin * half, ss + begin * half, end - begin, heads,
                            half, inverse ? -1.0f : 1.0f);
    });
  });
}

}  // namespace shardtune::ops
