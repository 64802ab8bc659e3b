#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "shardtune/core/ops.h"

namespace shardtune::ops {
namespace {

/// Sum of a[i] * b[i] in eight fixed lanes: vectorises without reassociation flags and always adds in the same order.
float dot(const float* a, const float* b, std::int64_t n) {
  float lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; i < n; ++i) sum += a[i] * b[i];
  return static_cast<float>(sum);
}

float inverse_rms(const float* x, std::int64_t width, double epsilon) {
  return 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + static_cast<float>(epsilon));
}

constexpr std::int64_t kGrain = 16;

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor input = x.to(at::kFloat).contiguous();
  at::Tensor normed = at::empty({rows, width}, input.options());
  const auto* from = input.const_data_ptr<float>();
  auto* to = normed.mutable_data_ptr<float>();
  at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float scale = inverse_rms(from + n * width, width, epsilon);
      for (std::int64_t d = 0; d < width; ++d) to[n * width + d] = from[n * width + d] * scale;
    }
  });
  return normed.to(x.scalar_type()).mul_(weight);
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
    for (std::int64_t n = begin; n < end; ++n) {
      const float *xr = xs + n * width, *gr = gs + n * width;
      float* out = to + n * width;
      const float scale = inverse_rms(xr, width, epsilon);
      for (std::int64_t d = 0; d < width; ++d) out[d] = gr[d] * ws[d];
      const float shared = dot(out, xr, width) * scale * scale / static_cast<float>(width);
      for (std::int64_t d = 0; d < width; ++d) out[d] = scale * (out[d] - xr[d] * shared);
    }
  });
  if (weight_sink != nullptr) {
    auto* sink = weight_sink->mutable_data_ptr<float>();
    for (std::int64_t n = 0; n < rows; ++n) {
      const float scale = inverse_rms(xs + n * width, width, epsilon);
      for (std::int64_t d = 0; d < width; ++d) sink[d] += gs[n * width + d] * (xs[n * width + d] * scale);
    }
  }
  return result.to(x.scalar_type());
}

void apply_rotary(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, bool inverse) {
  const std::int64_t half = x.size(-1) / 2;
  at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  const at::Tensor c = cosine.unsqueeze(1), s = inverse ? at::neg(sine).unsqueeze(1) : sine.unsqueeze(1);
  const at::Tensor turned = at::sub(low * c, high * s);
  high.mul_(c).add_(low * s);
  low.copy_(turned);
}

}  // namespace shardtune::ops
