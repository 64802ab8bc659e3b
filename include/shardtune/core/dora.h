#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/core/low_rank.h"

/// What DoRA (Liu et al., weight-decomposed low-rank adaptation) needs beside the low-rank path. N as in ops.h; R is the rank.
namespace shardtune::ops {

/// Norms [out] (fp32) of the rows of w + scaling * B A, w [out, in]. The sum exists for one row at a time (for 256 above rank
/// 32), never as a matrix; squares are added in fp64. Each row's norm is the same for any number of threads.
at::Tensor merged_row_norms(const at::Tensor& w, const LowRank& factors);

/// x [N, out] with column j multiplied by scale[j] (fp32): computed in fp32, rounded to x's type.
at::Tensor scaled_columns(const at::Tensor& x, const at::Tensor& scale);
/// The same in x's place.
void scale_columns(at::Tensor& x, const at::Tensor& scale);
/// y [N, out] += x with column j multiplied by scale[j].
void add_scaled_columns(at::Tensor& y, const at::Tensor& x, const at::Tensor& scale);
/// Sums [out] (fp64) over the rows of a * b, both [N, out], in the order of the rows.
at::Tensor column_dots(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardtune::ops
