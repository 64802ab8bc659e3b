#pragma once
#include <ATen/core/Tensor.h>

namespace shardtune::ops {

/// sum [n, m] = a [n, k] b [k, m], plus sum's own value when `add`; fp32 on the CPU, sum contiguous, by the library of
/// choose_blas().
void gemm_fp32(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool add);

}  // namespace shardtune::ops
