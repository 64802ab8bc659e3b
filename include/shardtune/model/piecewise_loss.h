#pragma once
#include <memory>

#include "shardtune/core/row_pieces.h"
#include "shardtune/model/llama.h"

namespace shardtune::model {

struct TargetRows;

/// Final norm, head and cross-entropy of one micro-batch when the head's weight comes in pieces of rows: LlamaModel::loss() with the
/// classes taken in turn, as flash attention takes keys. For the rows that have a target it keeps the running softmax and, for the
/// gradient, the weighted sum of the head's rows in fp32 and the target's row: [n, D] each. n x V logits never exist, and no
/// product is made twice.
class PiecewiseLoss {
 public:
  /// x [N, D], `norm` the final norm's weight, which is copied. x must be nobody else's when the gradient is wanted: it is written
  /// over x.
  PiecewiseLoss(const ModelConfig& config, const at::Tensor& x, std::span<const std::int32_t> targets,
                const StepContext& context, const at::Tensor& norm, bool want_gradient);
  ~PiecewiseLoss();
  PiecewiseLoss(PiecewiseLoss&&) noexcept;

  /// The head's rows [first_row, first_row + C) as `piece` [C, D]. Every piece once, in order.
  void add(const at::Tensor& piece, std::int64_t first_row);
  /// After all pieces.
  LlamaModel::LossResult finish(double scale);

 private:
  const ModelConfig& config_;
  at::Tensor x_, norm_;
  std::unique_ptr<TargetRows> rows_;
  std::span<const std::int32_t> targets_;
  ops::RunningSoftmax softmax_;
  at::Tensor weighted_, target_rows_;  ///< [n, D]; undefined without a gradient
};

/// Logits [N, C] fp32 of the head's rows `piece` [C, D]: columns of LlamaModel::logits().
at::Tensor logits_of_piece(const ModelConfig& config, const at::Tensor& x, const at::Tensor& norm,
                           const at::Tensor& piece);

}  // namespace shardtune::model
