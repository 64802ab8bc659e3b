#include "shardtune/model/piecewise_loss.h"

#include <ATen/ATen.h>

#include "shardtune/core/ops.h"
#include "target_rows.h"

namespace shardtune::model {
namespace {

/// Zeros the rows of x that have no target.
void clear_others(at::Tensor& x, std::span<const std::int32_t> targets) {
  if (x.is_meta()) return;
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i] < 0) x.select(0, static_cast<std::int64_t>(i)).zero_();
}

}  // namespace

PiecewiseLoss::PiecewiseLoss(const ModelConfig& config, const at::Tensor& x, std::span<const std::int32_t> targets,
                             const StepContext& context, const at::Tensor& norm, bool want_gradient)
    : config_(config), x_(x), norm_(norm.to(x.scalar_type(), /*non_blocking=*/false, /*copy=*/true)),
      rows_(std::make_unique<TargetRows>(targets, context)), targets_(targets),
      softmax_(rows_->where.size(0), x.options()) {
  if (want_gradient) weighted_ = at::zeros({rows_->where.size(0), x.size(1)}, x.options().dtype(at::kFloat));
}

PiecewiseLoss::~PiecewiseLoss() = default;
PiecewiseLoss::PiecewiseLoss(PiecewiseLoss&&) noexcept = default;

void PiecewiseLoss::add(const at::Tensor& piece, std::int64_t first_row) {
  const at::Tensor weight = piece.to(x_.scalar_type());
  const std::int64_t count = rows_->where.size(0), chunk = loss_chunk_rows(piece.size(0));
  if (weighted_.defined()) {
    if (!target_rows_.defined()) target_rows_ = at::empty(weighted_.sizes(), x_.options());
    ops::take_rows_of_piece(target_rows_, piece, rows_->classes, first_row);
  }
  for (std::int64_t first = 0; first < count; first += chunk) {
    const std::int64_t n = std::min(chunk, count - first);
    const at::Tensor hidden = ops::take_rows(x_, rows_->where.narrow(0, first, n));
    at::Tensor logits = ops::linear(ops::rms_norm(hidden, norm_, config_.norm_epsilon), weight);
    if (logits.scalar_type() != at::kBFloat16) logits = logits.to(at::kFloat);
    ops::RunningSoftmax softmax = softmax_.rows(first, n);
    const at::Tensor factors = ops::add_classes(softmax, logits, rows_->classes.narrow(0, first, n), first_row);
    if (!weighted_.defined()) continue;
    at::Tensor weighted = weighted_.narrow(0, first, n);
    weighted.mul_(factors);
    ops::add_product_fp32(weighted, logits.to(x_.scalar_type()), weight);
  }
}

LlamaModel::LossResult PiecewiseLoss::finish(double scale) {
  LlamaModel::LossResult result{.loss_sum = ops::loss_of(softmax_, config_.vocab_size), .gradient = {}};
  if (!weighted_.defined()) return result;
  const std::int64_t count = rows_->where.size(0), chunk = loss_chunk_rows(config_.vocab_size);
  for (std::int64_t first = 0; first < count; first += chunk) {
    const std::int64_t n = std::min(chunk, count - first);
    const at::Tensor positions = rows_->where.narrow(0, first, n), hidden = ops::take_rows(x_, positions);
    at::Tensor weighted = weighted_.narrow(0, first, n);
    const at::Tensor gradient = ops::input_gradient(softmax_.rows(first, n), weighted, target_rows_.narrow(0, first, n),
                                                    scale, x_.scalar_type());
    ops::put_rows(x_, positions, ops::rms_norm_backward(gradient, hidden, norm_, config_.norm_epsilon, nullptr));
  }
  clear_others(x_, targets_);
  weighted_.reset();
  target_rows_.reset();
  result.gradient = std::move(x_);
  return result;
}

at::Tensor logits_of_piece(const ModelConfig& config, const at::Tensor& x, const at::Tensor& norm,
                           const at::Tensor& piece) {
  const at::Tensor normed = ops::rms_norm(x, norm.to(x.scalar_type()), config.norm_epsilon);
  return ops::linear(normed, piece.to(x.scalar_type())).to(at::kFloat);
}

}  // namespace shardtune::model
