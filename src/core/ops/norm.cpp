#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "shardtune/core/ops.h"
#include "simd.h"

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

/// Rows of x over their root mean square, times w when there is one.
struct NormRows {
  [[gnu::always_inline]] static inline void run(const float* x, const float* w, float* to, std::int64_t rows,
                                                std::int64_t width, float epsilon) {
    for (std::int64_t n = 0; n < rows; ++n, x += width, to += width) {
      const float scale = inverse_rms(x, width, epsilon);
      if (w == nullptr)
        for (std::int64_t d = 0; d < width; ++d) to[d] = x[d] * scale;
      else
        for (std::int64_t d = 0; d < width; ++d) to[d] = x[d] * scale * w[d];
    }
  }
};

struct NormBackwardRows {
  [[gnu::always_inline]] static inline void run(const float* g, const float* x, const float* w, float* to,
                                                std::int64_t rows, std::int64_t width, float epsilon) {
    for (std::int64_t n = 0; n < rows; ++n, g += width, x += width, to += width) {
      const float scale = inverse_rms(x, width, epsilon);
      for (std::int64_t d = 0; d < width; ++d) to[d] = g[d] * w[d];
      const float shared = dot(to, x, width) * scale * scale / static_cast<float>(width);
      for (std::int64_t d = 0; d < width; ++d) to[d] = scale * (to[d] - x[d] * shared);
    }
  }
};

/// x [rows, heads, 2 * half] turned by the angles of each row.
struct RotateRows {
  [[gnu::always_inline]] static inline void run(float* x, const float* cosine, const float* sine, std::int64_t rows,
                                                std::int64_t heads, std::int64_t half, float sign) {
    for (std::int64_t n = 0; n < rows; ++n, cosine += half, sine += half)
      for (std::int64_t h = 0; h < heads; ++h, x += 2 * half) {
        // Restricted, because tests for overlap would cost as much as these short loops.
        float* __restrict left = x, * __restrict right = x + half;
        for (std::int64_t i = 0; i < half; ++i) {
          const float low = left[i], high = right[i], s = sine[i] * sign;
          left[i] = low * cosine[i] - high * s;
          right[i] = high * cosine[i] + low * s;
        }
      }
  }
};

constexpr std::int64_t kGrain = 16;

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor input = x.to(at::kFloat).contiguous();
  at::Tensor normed = at::empty({rows, width}, input.options());
  const auto* from = input.const_data_ptr<float>();
  auto* to = normed.mutable_data_ptr<float>();
  // Only fp32 takes the weight along: other types round before it.
  const at::Tensor w = weight.contiguous();
  const float* ws = x.scalar_type() == at::kFloat ? w.const_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::run<NormRows>(from + begin * width, ws, to + begin * width, end - begin, width, static_cast<float>(epsilon));
  });
  return ws != nullptr ? normed : normed.to(x.scalar_type()).mul_(weight);
}

at::Tensor rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             at::Tensor* weight_sink) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor input = x.to(at::kFloat).contiguous(), g = gradient.to(at::kFloat).contiguous();
  const at::Tensor w = weight.to(at::kFloat).contiguous();
  at::Tensor result = at::empty({rows, width}, input.options());
  const auto *xs = input.const_data_ptr<float>(), *gs = g.const_data_ptr<float>(), *ws = w.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * width;
    simd::run<NormBackwardRows>(gs + at, xs + at, ws, to + at, end - begin, width, static_cast<float>(epsilon));
  });
  if (weight_sink != nullptr) {
    auto* sink = weight_sink->mutable_data_ptr<float>();
    for (std::int64_t n = 0; n < rows; ++n) {
      const float scale = inverse_rms(xs + n * width, width, static_cast<float>(epsilon));
      for (std::int64_t d = 0; d < width; ++d) sink[d] += gs[n * width + d] * (xs[n * width + d] * scale);
    }
  }
  return result.to(x.scalar_type());
}

void apply_rotary(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, bool inverse) {
  const std::int64_t heads = x.size(1), half = x.size(-1) / 2;
  if (x.scalar_type() == at::kFloat && x.is_contiguous()) {
    const at::Tensor c = cosine.contiguous(), s = sine.contiguous();
    auto* xs = x.mutable_data_ptr<float>();
    const auto *cs = c.const_data_ptr<float>(), *ss = s.const_data_ptr<float>();
    at::parallel_for(0, x.size(0), kGrain, [&](std::int64_t begin, std::int64_t end) {
      simd::run<RotateRows>(xs + begin * heads * 2 * half, cs + begin * half, ss + begin * half, end - begin, heads,
                            half, inverse ? -1.0f : 1.0f);
    });
    return;
  }
  at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  const at::Tensor c = cosine.unsqueeze(1), s = inverse ? at::neg(sine).unsqueeze(1) : sine.unsqueeze(1);
  const at::Tensor turned = at::sub(low * c, high * s);
  high.mul_(c).add_(low * s);
  low.copy_(turned);
}

}  // namespace shardtune::ops
