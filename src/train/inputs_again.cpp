// The part of the engine that makes layer inputs again which were not kept (--activation_policy inputs_every_N).
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/train/step_engine.h"

namespace shardtune::train {

void StepEngine::forward_again(std::size_t unit, std::size_t last_layer, Walk& walk) {
  if (walk.batch->empty() || settings_.input_block == 1) return;
  const LedgerScope scope(Purpose::kWorkspace);
  for (const std::size_t stage : shards_.stages_of(unit)) {
    if (stage == 0 || stage > last_layer || keeps_input(stage) || walk.saved[stage].input.defined()) continue;
    announce("forward again", stage);
    at::Tensor& next = walk.saved[stage].input;
    next = model_.layer(stage - 1).forward(walk.saved[stage - 1].input, shards_.stage(stage), walk.context, nullptr);
    ops::book(next, Purpose::kKeptActivations);
  }
}

void StepEngine::make_inputs_again(std::size_t unit, std::span<Walk> walks) {
  if (settings_.input_block == 1 || shards_.stages_of(unit).back() == 0) return;
  const std::size_t last_layer = shards_.stages_of(unit).back() - 1;
  for (std::size_t again = schedule_.runs_again_from(unit); again < unit; ++again) {
    schedule_.enter_again(again, unit);
    for (Walk& walk : walks) forward_again(again, last_layer, walk);
    schedule_.leave_again(again, unit);
  }
}

}  // namespace shardtune::train
