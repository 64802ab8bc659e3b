#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "shardtune/core/ops.h"
#include "shardtune/core/row_pieces.h"
#include "shardtune/model/llama.h"

namespace shardtune::model {

/// Final norm, head and cross-entropy of one micro-batch when the head's weight comes in pieces of rows: LlamaModel::loss() with the
/// classes taken in turn, as flash attention takes keys. For the rows that have a target it keeps the running softmax and, for the
/// gradient, the weighted sum of the head's rows in fp32 and the target's row: [n, D] each. n x V logits never exist, and no
/// product is made twice.
class PiecewiseLoss {
 public:
  /// x [N, D], `norm` the final norm's weight, which is copied. Takes the rows with a target of group `group` of `groups` of about
  /// equal size. x must be nobody else's when the gradient is wanted: it is written over these rows.
  PiecewiseLoss(const ModelConfig& config, const at::Tensor& x, std::span<const std::int32_t> targets,
                const StepContext& context, const at::Tensor& norm, bool want_gradient, std::int64_t group = 0,
                std::int64_t groups = 1);

  /// The head's rows [first_row, first_row + C) as `piece` [C, D]. Every piece once, in order.
  void add(const at::Tensor& piece, std::int64_t first_row);
  /// After all pieces: the sum of the token losses; the gradient of scale * that is then in x, 0 in rows without a target.
  double finish(double scale);
  /// Rows whose target has the largest logit; counted without a gradient only.
  std::int64_t correct() const;

 private:
  const ModelConfig& config_;
  at::Tensor x_, norm_;
  at::Tensor where_, classes_;  ///< [n] int64
  ops::RunningSoftmax softmax_;
  std::int64_t chunk_ = 0;  ///< rows whose logits exist at once
  std::vector<ops::Largest> largest_;  ///< by chunk
  at::Tensor weighted_, target_rows_;  ///< [n, D]; undefined without a gradient
};

/// Groups in which the loss takes `rows` of width `width`, each group through all pieces: what it keeps for a group is at most
/// 512 MiB, less than a layer's workspace at 70B.
std::int64_t loss_groups(std::int64_t rows, std::int64_t width, at::ScalarType type);

/// Logits [N, C] fp32 of the head's rows `piece` [C, D]: columns of LlamaModel::logits().
at::Tensor logits_of_piece(const ModelConfig& config, const at::Tensor& x, const at::Tensor& norm,
                           const at::Tensor& piece);

}  // namespace shardtune::model
