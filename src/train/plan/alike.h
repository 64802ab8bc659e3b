#pragma once
#include <cstdint>

#include "shardtune/comm/communicator.h"
#include "shardtune/train/train_step.h"

namespace shardtune::train::plan {

/// What a step of the planner gave. A step that is planned has micro-batches of one shape.
struct PlannedStep {
  StepResult result;
  comm::Counts collectives;  ///< of the whole step
  std::int64_t computed = 0;  ///< micro-batches that went through the model
};

/// train_step() on shapes with `slots` micro-batches like `batch`. One after the other (--accumulation_order micro_batch_first),
/// they go through the model until one does exactly what the one before did: the same work told to the work listener, the same
/// collectives, the same live bytes of each purpose after it. All that follow would do it again, in memory that they find as
/// it did; so for each of them the listener is told the same work once more, and its collectives are counted, but nothing is
/// computed. Every figure of the step is that of the whole one, to the last bit. `all`: compute every one.
PlannedStep planned_step(Run& run, const data::MicroBatch& batch, std::int64_t slots, std::int64_t step, bool all);

}  // namespace shardtune::train::plan
