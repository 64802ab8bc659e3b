#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/core/ops.h"

/// The low-rank path of one LoRA linear, fused: what is dropped or wider than the rank exists for a few rows at a time only
/// (one to eight up to rank 32, 256 above). N as in ops.h; R is the rank.
namespace shardtune::ops {

struct LowRank {
  const at::Tensor& a;  ///< [R, in]; widened to fp32 when it is narrower, as B
  const at::Tensor& b;  ///< [out, R]
  double scaling = 1;
};

/// y [N, out] += scaling * dropout(x) A^T B^T for x [N, in]: sums in fp32, one rounding into y's type. A key with probability 0
/// drops nothing and needs no samples.
void add_low_rank(at::Tensor& y, const at::Tensor& x, const LowRank& factors, const DropoutKey& key);

/// The same with column j of y multiplied by scale[j] ([out], fp32) before the sum, which is rounded once into y's type.
void scale_and_add_low_rank(at::Tensor& y, const at::Tensor& scale, const at::Tensor& x, const LowRank& factors,
                            const DropoutKey& key);

/// The backward of add_low_rank for `gradient` [N, out]: adds to x_gradient [N, in] (one rounding into its type) and, where
/// given, to the fp32 gradients of A [R, in] and B [out, R].
void low_rank_backward(const at::Tensor& x, const at::Tensor& gradient, const LowRank& factors, const DropoutKey& key,
                       at::Tensor& x_gradient, at::Tensor* a_gradient, at::Tensor* b_gradient);

}  // namespace shardtune::ops
