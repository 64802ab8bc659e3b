#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "dropout_rows.h"

/// The two ways through one LoRA linear: loops over rows for small ranks, matrix products over blocks of rows for others, where
/// the library's products are faster than loops. Tensors of rows are contiguous and share a type, fp32 or bf16.
namespace shardtune::ops::low_rank {

struct Factors {
  at::Tensor a, b;  ///< [rank, in] and, transposed, [rank, out]; fp32, contiguous
  float scaling = 1;
  const DropoutKey& key;
  const float* y_scale = nullptr;  ///< [out]: y's columns are multiplied by it before something is added
};

/// y [N, out] += scaling * dropout(x) A^T B^T.
void add_by_loops(at::Tensor& y, const at::Tensor& x, const Factors& factors);
void add_by_products(at::Tensor& y, const at::Tensor& x, const Factors& factors);

/// Adds to x_gradient [N, in] and, where given, to those of A [rank, in] and B [out, rank].
void backward_by_loops(const at::Tensor& x, const at::Tensor& gradient, const Factors& factors, at::Tensor& x_gradient,
                       at::Tensor* a_gradient, at::Tensor* b_gradient);
void backward_by_products(const at::Tensor& x, const at::Tensor& gradient, const Factors& factors,
                          at::Tensor& x_gradient, at::Tensor* a_gradient, at::Tensor* b_gradient);

/// The words of each row, or none at all when nothing is dropped.
inline std::optional<DropoutWords> words_for(const DropoutKey& key, std::int64_t rows, std::int64_t width) {
  if (key.probability == 0) return std::nullopt;
  return std::optional<DropoutWords>(std::in_place, key, rows, width);
}

}  // namespace shardtune::ops::low_rank
