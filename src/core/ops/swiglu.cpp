#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "elements.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/shape_only.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

// Every step rounds to the tensors' type, as the operators of LibTorch one by one do.

struct Swiglu {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* gate, const T* up, T* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float g = simd::widen(gate[i]);
      const float silu = simd::widen(simd::rounded<T>(g / (1.0f + simd::exp(-g))));
      to[i] = simd::rounded<T>(silu * simd::widen(up[i]));
    }
  }
};

struct SwigluBackward {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* __restrict gradient, T* __restrict gate, T* __restrict up,
                                                std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float d = simd::widen(gradient[i]), g = simd::widen(gate[i]), sigmoid = 1.0f / (1.0f + simd::exp(-g));
      const float behind = simd::widen(simd::rounded<T>(d * simd::widen(up[i])));
      gate[i] = simd::rounded<T>(behind * sigmoid * (1.0f + g * (1.0f - sigmoid)));
      up[i] = simd::rounded<T>(d * simd::widen(simd::rounded<T>(g * sigmoid)));
    }
  }
};

constexpr std::int64_t kGrain = 8192;

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  tell_rows(gate, 3);
  if (gate.is_meta()) return at::empty_like(gate);
  if (!has_rows(gate) || !has_rows(up)) return at::silu(gate).mul_(up);
  at::Tensor result = at::empty_like(gate);
  with_element(gate.scalar_type(), [&](auto element) {
    const auto *gates = data(gate, element), *ups = data(up, element);
    auto* to = mutable_data(result, element);
    at::parallel_for(0, gate.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      simd::run<Swiglu>(gates + begin, ups + begin, to + begin, end - begin);
    });
  });
  return result;
}

void swiglu_backward(const at::Tensor& gradient, at::Tensor& gate, at::Tensor& up) {
  tell_rows(gate, 5);
  if (gate.is_meta()) return;
  if (!has_rows(gradient) || !has_rows(gate) || !has_rows(up)) {
    const at::Tensor gate_gradient = at::silu_backward(at::mul(gradient, up), gate);
    up.copy_(at::silu(gate).mul_(gradient));
    gate.copy_(gate_gradient);
    return;
  }
  with_element(gate.scalar_type(), [&](auto element) {
    const auto* from = data(gradient, element);
    auto *gates = mutable_data(gate, element), *ups = mutable_data(up, element);
    at::parallel_for(0, gate.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      simd::run<SwigluBackward>(from + begin, gates + begin, ups + begin, end - begin);
    });
  });
}

}  // namespace shardtune::ops
