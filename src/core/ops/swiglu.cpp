#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "simd.h"

namespace shardtune::ops {
namespace {

struct Swiglu {
  [[gnu::always_inline]] static inline void run(const float* gate, const float* up, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = gate[i] / (1.0f + simd::exp(-gate[i])) * up[i];
  }
};

struct SwigluBackward {
  [[gnu::always_inline]] static inline void run(const float* __restrict gradient, float* __restrict gate,
                                                float* __restrict up, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float g = gate[i], sigmoid = 1.0f / (1.0f + simd::exp(-g));
      gate[i] = gradient[i] * up[i] * sigmoid * (1.0f + g * (1.0f - sigmoid));
      up[i] = gradient[i] * (g * sigmoid);
    }
  }
};

constexpr std::int64_t kGrain = 8192;

bool plain_fp32(const at::Tensor& x) { return x.scalar_type() == at::kFloat && x.is_contiguous(); }

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (!plain_fp32(gate) || !plain_fp32(up)) return at::silu(gate).mul_(up);
  at::Tensor result = at::empty_like(gate);
  const auto *gates = gate.const_data_ptr<float>(), *ups = up.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, gate.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::run<Swiglu>(gates + begin, ups + begin, to + begin, end - begin);
  });
  return result;
}

void swiglu_backward(const at::Tensor& gradient, at::Tensor& gate, at::Tensor& up) {
  if (!plain_fp32(gradient) || !plain_fp32(gate) || !plain_fp32(up)) {
    const at::Tensor gate_gradient = at::silu_backward(at::mul(gradient, up), gate);
    up.copy_(at::silu(gate).mul_(gradient));
    gate.copy_(gate_gradient);
    return;
  }
  const auto* from = gradient.const_data_ptr<float>();
  auto *gates = gate.mutable_data_ptr<float>(), *ups = up.mutable_data_ptr<float>();
  at::parallel_for(0, gate.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::run<SwigluBackward>(from + begin, gates + begin, ups + begin, end - begin);
  });
}

}  // namespace shardtune::ops
