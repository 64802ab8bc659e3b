#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "shardtune/comm/agree.h"
#include "shardtune/data/loader.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

struct StepResult {
  double loss = 0;  ///< sum of the token losses of the step over all ranks / its targets
  double grad_norm = 0;  ///< global, before clipping
  double learning_rate = 0;
  std::int64_t targets = 0, tokens = 0;  ///< all ranks
  bool skipped = false;  ///< fp16: the gradients overflowed, the weights stay as they are, the loss scale was halved
};

/// One optimizer step: all micro-batches of all ranks, normalised by their target tokens together, clipped by the global norm,
/// the optimizer's update. `step` counts from 0. A failure on one rank before the first gather, a step without targets, and a loss or norm that
/// is not finite end the run on all ranks with AgreedError, before any weight has changed. Collective.
StepResult train_step(Run& run, const data::LoaderPosition& position, std::int64_t step);

/// The same for micro-batches that the caller made, or the reason why this rank has none. Collective.
StepResult train_step(Run& run, const std::vector<data::MicroBatch>& batches, std::int64_t step,
                      const std::optional<comm::Failure>& failure = {});

/// Of this rank's micro-batches in a step.
struct LocalCounts {
  std::int64_t targets = 0, tokens = 0;
};

/// The same for micro-batches that the caller takes through the model itself: `forward_backward` gets the scale of the loss, adds
/// the gradients and gives the loss sum of each. Collective.
StepResult train_step(Run& run, const LocalCounts& counts, std::int64_t step,
                      const std::function<std::vector<double>(double scale)>& forward_backward);

/// Refuses to go on when a trained weight is not finite: called before anything is written. AgreedError(kNonFinite).
/// Collective.
void check_weights_finite(Run& run);

struct EvalResult {
  double loss = 0;  ///< token-weighted mean over the whole evaluation set: does not depend on ranks or batch size
  std::int64_t targets = 0;
  std::int64_t correct = 0;  ///< of these, tokens that the model holds for the likeliest
};

/// Evaluates all evaluation rows once, without dropout. Collective.
EvalResult evaluate(Run& run);

}  // namespace shardtune::train
