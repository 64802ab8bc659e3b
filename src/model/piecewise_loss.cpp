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

at::Tensor part_of(const at::Tensor& all, std::int64_t group, std::int64_t groups) {
  const std::int64_t first = all.size(0) * group / groups;
  return all.narrow(0, first, all.size(0) * (group + 1) / groups - first);
}

}  // namespace

std::int64_t loss_groups(std::int64_t rows, std::int64_t width, at::ScalarType type) {
  constexpr std::int64_t kBytes = 512 << 20;
  const std::int64_t bytes = rows * width * (4 + static_cast<std::int64_t>(at::elementSize(type)));
  return std::max<std::int64_t>(1, (bytes + kBytes - 1) / kBytes);
}

PiecewiseLoss::PiecewiseLoss(const ModelConfig& config, const at::Tensor& x, std::span<const std::int32_t> targets,
                             const StepContext& context, const at::Tensor& norm, bool want_gradient, std::int64_t group,
                             std::int64_t groups)
    : config_(config), x_(x), norm_(norm.to(x.scalar_type(), /*non_blocking=*/false, /*copy=*/true)),
      softmax_(0, x.options()) {
  const TargetRows rows(targets, context);
  where_ = part_of(rows.where, group, groups);
  classes_ = part_of(rows.classes, group, groups);
  softmax_ = ops::RunningSoftmax(where_.size(0), x.options());
  if (!want_gradient) return;
  if (group == 0) clear_others(x_, targets);
  weighted_ = at::zeros({where_.size(0), x.size(1)}, x.options().dtype(at::kFloat));
  target_rows_ = at::empty(weighted_.sizes(), x.options());
}

void PiecewiseLoss::add(const at::Tensor& piece, std::int64_t first_row) {
  const at::Tensor weight = piece.to(x_.scalar_type());
  const std::int64_t count = where_.size(0);
  // Pieces differ by a row at most.
  if (chunk_ == 0) chunk_ = loss_chunk_rows(piece.size(0));
  largest_.resize(static_cast<std::size_t>((count + chunk_ - 1) / chunk_));
  if (weighted_.defined()) ops::take_rows_of_piece(target_rows_, piece, classes_, first_row);
  for (std::int64_t first = 0; first < count; first += chunk_) {
    const std::int64_t n = std::min(chunk_, count - first);
    const at::Tensor hidden = ops::take_rows(x_, where_.narrow(0, first, n));
    at::Tensor logits = ops::linear(ops::rms_norm(hidden, norm_, config_.norm_epsilon), weight);
    if (logits.scalar_type() != at::kBFloat16) logits = logits.to(at::kFloat);
    if (!weighted_.defined()) ops::add_largest(largest_[static_cast<std::size_t>(first / chunk_)], logits, first_row);
    ops::RunningSoftmax softmax = softmax_.rows(first, n);
    const at::Tensor factors = ops::add_classes(softmax, logits, classes_.narrow(0, first, n), first_row);
    if (!weighted_.defined()) continue;
    at::Tensor weighted = weighted_.narrow(0, first, n);
    weighted.mul_(factors);
    ops::add_product_fp32(weighted, logits.to(x_.scalar_type()), weight);
  }
}

double PiecewiseLoss::finish(double scale) {
  const double loss = ops::loss_of(softmax_, config_.vocab_size);
  if (!weighted_.defined()) return loss;
  const std::int64_t count = where_.size(0), chunk = loss_chunk_rows(config_.vocab_size);
  for (std::int64_t first = 0; first < count; first += chunk) {
    const std::int64_t n = std::min(chunk, count - first);
    const at::Tensor positions = where_.narrow(0, first, n), hidden = ops::take_rows(x_, positions);
    at::Tensor weighted = weighted_.narrow(0, first, n);
    const at::Tensor gradient = ops::input_gradient(softmax_.rows(first, n), weighted, target_rows_.narrow(0, first, n),
                                                    scale, x_.scalar_type());
    ops::put_rows(x_, positions, ops::rms_norm_backward(gradient, hidden, norm_, config_.norm_epsilon, nullptr));
  }
  return loss;
}

std::int64_t PiecewiseLoss::correct() const {
  std::int64_t correct = 0, row = 0;
  for (const ops::Largest& chunk : largest_)
    for (const std::int64_t found : chunk.classes) correct += found == classes_.const_data_ptr<std::int64_t>()[row++];
  return correct;
}

at::Tensor logits_of_piece(const ModelConfig& config, const at::Tensor& x, const at::Tensor& norm,
                           const at::Tensor& piece) {
  const at::Tensor normed = ops::rms_norm(x, norm.to(x.scalar_type()), config.norm_epsilon);
  return ops::linear(normed, piece.to(x.scalar_type())).to(at::kFloat);
}

}  // namespace shardtune::model
