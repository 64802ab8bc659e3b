#include "shardtune/train/train_step.h"

#include <ATen/ATen.h>

#include <cmath>

#include "shardtune/comm/agree.h"
#include "shardtune/core/ops.h"
#include "shardtune/optim/gradient_norm.h"
#include "shardtune/optim/schedule.h"

namespace shardtune::train {
namespace {

struct Counts {
  std::int64_t targets = 0, tokens = 0, failed = 0;
};

/// This rank's micro-batches. The one place where data can fail inside a step.
std::vector<data::MicroBatch> collect(const Run& run, const data::LoaderPosition& position) {
  const std::int64_t slots = run.train_loader->slots(position.step_in_epoch);
  std::vector<data::MicroBatch> batches;
  for (std::int64_t slot = 0; slot < slots; ++slot)
    batches.push_back(data::collate(run.train_rows, run.train_loader->rows(position.epoch, position.step_in_epoch, slot,
                                                                           run.communicator->rank())));
  return batches;
}

LocalCounts count(const std::vector<data::MicroBatch>& batches) {
  LocalCounts local;
  for (const data::MicroBatch& batch : batches) {
    local.targets += batch.target_count;
    local.tokens += static_cast<std::int64_t>(batch.ids.size());
  }
  return local;
}

/// The step's counts over all ranks, which learn here whether one of them failed. Collective.
Counts count_over_ranks(Run& run, const LocalCounts& counts, const std::optional<comm::Failure>& failure) {
  const Counts local{.targets = counts.targets, .tokens = counts.tokens, .failed = failure ? 1 : 0};
  Counts all;
  for (const Counts& rank : run.communicator->gather_values(local)) {
    all.targets += rank.targets;
    all.tokens += rank.tokens;
    all.failed += rank.failed;
  }
  if (all.failed > 0) comm::agree_or_throw(*run.communicator, failure);
  return all;
}

/// Micro-batch losses of all ranks added in the order of the global batch (slot by slot, rank by rank), so that the sum does
/// not depend on how the batch was dealt.
double sum_losses(comm::Communicator& communicator, const std::vector<double>& local) {
  std::vector<double> all(local.size() * static_cast<std::size_t>(communicator.size()));
  communicator.gather_control(std::as_bytes(std::span(local)), std::as_writable_bytes(std::span(all)));
  double sum = 0;
  for (std::size_t slot = 0; slot < local.size(); ++slot)
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(communicator.size()); ++rank)
      sum += all[rank * local.size() + slot];
  return sum;
}

/// Loss sums of the micro-batches, run through the model one by one or together.
std::vector<double> forward_backward(Run& run, std::span<const data::MicroBatch> batches, std::int64_t step,
                                     double scale) {
  if (run.options.train.accumulation_order == "layer_first") return run.engine->forward_backward(batches, step, scale);
  std::vector<double> losses;
  for (const data::MicroBatch& batch : batches)
    losses.push_back(run.engine->forward_backward({&batch, 1}, step, scale).front());
  return losses;
}

/// Over the shard group: its ranks hold every gradient once.
double global_norm(comm::Communicator& communicator, const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const double part : communicator.gather_values(optim::local_squared_norm(gradients))) sum += part;
  return std::sqrt(sum);
}

void check_finite(double value, const char* what, std::int64_t step) {
  if (!std::isfinite(value))
    throw comm::AgreedError(
        ErrorClass::kNonFinite,
        fmt::format("{} of step {} is {}; stopped before the weights changed. Lower --learning_rate, or look at the "
                    "data of this step",
                    what, step + 1, value));
}

/// Whether the loss scale was too large for this step; all ranks have the same norm. The scale may shrink to 1: below that
/// it is not the scale that makes the gradients overflow.
bool skips(Run& run, double norm) {
  if (!run.scaler) return false;
  const bool overflow = !std::isfinite(norm) && run.scaler->scale() > 1;
  run.scaler->update(!overflow);
  return overflow;
}

/// All of a step but the way of its micro-batches through the model.
StepResult take_step(Run& run, const Counts& counts, std::int64_t step,
                     const std::function<std::vector<double>(double scale)>& forward_backward) {
  if (!run.optimizer || !run.shards->trained_takes_part())
    throw comm::AgreedError(ErrorClass::kUsage, "no adapter is trained, or it takes no part; name one and enable it");
  if (counts.targets == 0)
    throw comm::AgreedError(ErrorClass::kBadData,
                            fmt::format("step {} has no trained token: every label in it is ignored", step + 1));

  StepResult result{.targets = counts.targets, .tokens = counts.tokens};
  run.shards->clear_gradient_sums();
  const double loss_scale = run.scaler ? run.scaler->scale() : 1.0;
  const std::vector<double> losses = forward_backward(loss_scale / static_cast<double>(counts.targets));
  run.shards->reduce_over_replicas();
  result.loss = sum_losses(*run.communicator, losses) / static_cast<double>(counts.targets);

  std::vector<at::Tensor> gradients(run.shards->units());
  for (std::size_t unit = 0; unit < gradients.size(); ++unit) {
    if (run.shards->trained(unit).empty()) continue;
    gradients[unit] = run.shards->reduced_gradient(unit);
    if (run.scaler) gradients[unit].mul_(1.0 / loss_scale);
  }
  result.grad_norm = global_norm(run.mesh->shard(), gradients);
  check_finite(result.loss, "the loss", step);
  result.learning_rate = optim::learning_rate_at(run.options.optim, step, run.total_steps);
  if (skips(run, result.grad_norm)) {
    result.skipped = true;
    return result;
  }
  check_finite(result.grad_norm, "the gradient norm", step);
  run.optimizer->step(gradients, optim::clip_coefficient(result.grad_norm, run.options.optim.max_grad_norm),
                      result.learning_rate);
  return result;
}

}  // namespace

StepResult train_step(Run& run, const data::LoaderPosition& position, std::int64_t step) {
  std::vector<data::MicroBatch> batches;
  std::optional<comm::Failure> failure;
  try {
    batches = collect(run, position);
  } catch (...) {
    failure = comm::current_failure();
  }
  return train_step(run, batches, step, failure);
}

StepResult train_step(Run& run, const std::vector<data::MicroBatch>& batches, std::int64_t step,
                      const std::optional<comm::Failure>& failure) {
  return take_step(run, count_over_ranks(run, count(batches), failure), step,
                   [&](double scale) { return forward_backward(run, batches, step, scale); });
}

StepResult train_step(Run& run, const LocalCounts& counts, std::int64_t step,
                      const std::function<std::vector<double>(double)>& forward_backward) {
  return take_step(run, count_over_ranks(run, counts, {}), step, forward_backward);
}

void check_weights_finite(Run& run) {
  comm::agree(*run.communicator, [&] {
    for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
      const fsdp::FlatShard& shard = run.shards->trained(unit);
      if (!shard.empty() && !ops::all_finite(shard.local()))
        fail(ErrorClass::kNonFinite,
             "trained weights of {} are not finite; nothing is written. Lower --learning_rate, or raise "
             "--adam_epsilon",
             run.shards->spec(unit).name);
    }
  });
}

EvalResult evaluate(Run& run) {
  struct Sums {
    std::int64_t targets = 0, correct = 0;
  } local;
  std::vector<double> losses;
  for (std::int64_t step = 0; step < run.eval_loader->steps_per_epoch(); ++step) {
    const data::MicroBatch batch =
        data::collate(run.eval_rows, run.eval_loader->rows(0, step, 0, run.communicator->rank()));
    const auto of_batch = run.engine->evaluate_tokens(batch);
    losses.push_back(of_batch.loss_sum);
    local.targets += batch.target_count;
    local.correct += of_batch.correct;
  }
  EvalResult result{.loss = sum_losses(*run.communicator, losses)};
  for (const Sums& rank : run.communicator->gather_values(local)) {
    result.targets += rank.targets;
    result.correct += rank.correct;
  }
  if (result.targets == 0) throw comm::AgreedError(ErrorClass::kBadData, "the evaluation set has no target token");
  result.loss /= static_cast<double>(result.targets);
  if (!std::isfinite(result.loss))
    throw comm::AgreedError(ErrorClass::kNonFinite,
                            fmt::format("the evaluation loss is {}; the weights have left the range in which "
                                        "the model computes. Lower --learning_rate",
                                        result.loss));
  return result;
}

}  // namespace shardtune::train
