#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

/// The operators of an embedding and a head whose table [V, D] comes in pieces: rows [first, first + C) at a time.
namespace shardtune::ops {

/// Rows of `to` [N, D] whose id (ids [N] int64, on the host) lies in the piece [C, D] := that row, in to's type.
void take_rows_of_piece(at::Tensor& to, const at::Tensor& piece, const at::Tensor& ids, std::int64_t first);

/// sum [n, m] (fp32) += a [n, k] b [k, m].
void add_product_fp32(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

/// What is known of the softmax of each row after some of its classes, as in flash attention: the maximum m of the classes that
/// are not the target, the sum of exp(logit - m) over them, and the target's logit. Keeping the target apart loses no digits
/// where the model is nearly sure of it.
struct RunningSoftmax {
  RunningSoftmax(std::int64_t rows, const at::TensorOptions& options);
  /// The same for rows [first, first + count): views.
  RunningSoftmax rows(std::int64_t first, std::int64_t count) const;

  at::Tensor maximum;  ///< [n] fp32
  at::Tensor sum;  ///< [n] fp64
  at::Tensor target_logit;  ///< [n] fp32

 private:
  RunningSoftmax() = default;
};

/// Takes logits [n, C] (fp32 or bf16) of the classes from `first` into `softmax`. Leaves exp(logit - maximum) in `logits`, 0 at
/// the target; returns the factors [n, 1] fp32 by which sums over earlier classes have to be multiplied now.
at::Tensor add_classes(RunningSoftmax& softmax, at::Tensor& logits, const at::Tensor& targets, std::int64_t first);

/// When all `classes` were added: the sum of logsumexp - logit[target] over the rows, in fp64.
double loss_of(const RunningSoftmax& softmax, std::int64_t classes);

/// The gradient [n, D] in `type` of scale * loss for the head's input: scale * sum of (p_j - [j is the target]) W_j, from
/// `weighted` [n, D] (fp32, overwritten), the sum of exp(logit - maximum) W_j without the target, and the target's rows [n, D].
at::Tensor input_gradient(const RunningSoftmax& softmax, at::Tensor& weighted, const at::Tensor& target_rows,
                          double scale, at::ScalarType type);

}  // namespace shardtune::ops
