#pragma once
#include <ATen/core/Tensor.h>

#include "simd.h"

/// Tensors of fp32 or bf16 for the row loops, which take both as they are and compute in fp32.
namespace shardtune::ops {

inline bool has_rows(const at::Tensor& x) {
  return x.device().is_cpu() && x.is_contiguous() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

inline const float* data(const at::Tensor& x, float) { return x.const_data_ptr<float>(); }
inline float* mutable_data(const at::Tensor& x, float) { return x.mutable_data_ptr<float>(); }
inline const simd::Bf16* data(const at::Tensor& x, simd::Bf16) {
  return reinterpret_cast<const simd::Bf16*>(x.const_data_ptr<at::BFloat16>());
}
inline simd::Bf16* mutable_data(const at::Tensor& x, simd::Bf16) {
  return reinterpret_cast<simd::Bf16*>(x.mutable_data_ptr<at::BFloat16>());
}

/// use(float{}) or use(simd::Bf16{}), which the functions above take.
template <typename Use>
void with_element(at::ScalarType type, const Use& use) {
  if (type == at::kFloat) use(float{});
  else use(simd::Bf16{});
}

}  // namespace shardtune::ops
