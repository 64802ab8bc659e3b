// The verbs that bring full weights and let them go.
#include <ATen/ATen.h>

#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "unit.h"

namespace shardtune::fsdp {

at::Tensor ShardedModel::take_buffer(std::size_t unit) {
  Pool& pool = pools_[units_[unit]->pool];
  for (std::size_t i = 0; i < pool.buffers.size(); ++i)
    if (!pool.occupants[i]) {
      pool.occupants[i] = unit;
      return pool.buffers[i];
    }
  fail(ErrorClass::kInternal, "unit {} wants a gather buffer, but all {} are taken", unit, pool.buffers.size());
}

/// Starts filling `into` (bytes of the unit's buffer) and makes views of it.
void ShardedModel::gather_part(Unit& unit, FlatShard& shard, at::Tensor local, const at::Tensor& into) {
  const std::int64_t bytes = shard.layout().full_elements() * static_cast<std::int64_t>(local.element_size());
  const at::Tensor full = into.narrow(0, 0, bytes);
  at::Tensor& inner = &shard == &unit.frozen ? unit.inner_frozen : unit.inner_trained;
  comm::Communicator& group = unit.spread ? mesh_.inner() : mesh_.shard();
  unit.pending.push_back(group.all_gather_start(ops::bytes_of(unit.spread ? inner : local), ops::bytes_of(full)));
  shard.views(full.view(local.scalar_type()), unit.spec, unit.weights);
}

void ShardedModel::start_gather(std::size_t index) {
  Unit& unit = *units_[index];
  SHARDTUNE_CHECK(unit.state == State::kSharded, "unit {} is gathered twice", index);
  unit.state = State::kGathering;
  if (unit.frozen_bytes + unit.trained_bytes > 0) unit.buffer = take_buffer(index);
  if (!unit.frozen.empty()) {
    if (unit.frozen_bytes > 0)
      gather_part(unit, unit.frozen, unit.frozen.local(), unit.buffer.narrow(0, 0, unit.frozen_bytes));
    else
      unit.frozen.views(unit.frozen.whole().defined() ? unit.frozen.whole() : unit.frozen.local(), unit.spec,
                        unit.weights);
  }
  if (unit.trained.empty()) return;
  if (unit.cast.defined()) unit.cast.copy_(unit.trained.local());
  const at::Tensor local = unit.cast.defined() ? unit.cast : unit.trained.local();
  if (unit.trained_bytes > 0)
    gather_part(unit, unit.trained, local, unit.buffer.narrow(0, unit.frozen_bytes, unit.trained_bytes));
  else unit.trained.views(local, unit.spec, unit.weights);
}

void ShardedModel::prefetch(std::size_t unit) {
  if (units_[unit]->state == State::kSharded) start_gather(unit);
}

void ShardedModel::hand_out(const Unit& unit, const std::vector<at::Tensor>& tensors,
                            std::vector<at::Tensor> model::UnitTensors::*kind) {
  std::size_t slot = 0;
  for (const std::size_t stage : unit.stages)
    for (at::Tensor& tensor : stages_[stage].*kind) tensor = tensors[slot++];
}

void ShardedModel::borrow_weight() {
  const Unit& owner = *units_[unit_of_[0]];
  SHARDTUNE_CHECK(owner.state == State::kGathered, "stage {} borrows from stage 0, which is not gathered",
                  borrower_->stage);
  stages_[borrower_->stage].weights[borrower_->slot] = stages_[0].weights[0];
}

void ShardedModel::unshard(std::size_t index) {
  prefetch(index);
  Unit& unit = *units_[index];
  if (unit.state == State::kGathered) return;
  for (auto& pending : unit.pending) pending->wait_on(settings_.stream);
  unit.pending.clear();
  unit.state = State::kGathered;
  hand_out(unit, unit.weights, &model::UnitTensors::weights);
  if (borrower_ && unit_of_[borrower_->stage] == index) borrow_weight();
}

void ShardedModel::reshard(std::size_t index) {
  Unit& unit = *units_[index];
  SHARDTUNE_CHECK(unit.state == State::kGathered, "unit {} is resharded but not gathered", index);
  unit.state = State::kSharded;
  unit.spread = false;
  for (auto& weight : unit.weights) weight.reset();
  hand_out(unit, unit.weights, &model::UnitTensors::weights);
  unit.buffer.reset();
  for (auto& occupant : pools_[unit.pool].occupants)
    if (occupant == index) occupant.reset();
}

void ShardedModel::reshard_to_inner(std::size_t index) {
  Unit& unit = *units_[index];
  SHARDTUNE_CHECK(unit.state == State::kGathered, "unit {} is resharded but not gathered", index);
  const at::Tensor buffer = unit.buffer;
  const auto keep = [&](FlatShard& shard, std::int64_t begin, std::int64_t room, std::int64_t width, at::Tensor& kept) {
    if (shard.empty() || room == 0) return;
    const std::int64_t bytes = shard.layout().full_elements() * width / mesh_.inner().size();
    const LedgerScope scope(Purpose::kGatherBuffers);
    if (!kept.defined()) kept = at::empty({bytes}, on_device(at::kByte));
    kept.copy_(buffer.narrow(0, begin + bytes * mesh_.inner().rank(), bytes));
  };
  keep(unit.frozen, 0, unit.frozen_bytes, width_of(unit.frozen.local().scalar_type()), unit.inner_frozen);
  keep(unit.trained, unit.frozen_bytes, unit.trained_bytes, width_of(settings_.trained_type), unit.inner_trained);
  reshard(index);
  unit.spread = unit.frozen_bytes + unit.trained_bytes > 0;
}

std::vector<at::Tensor> ShardedModel::gather_trained(std::size_t index, const at::Tensor& local) {
  const Unit& unit = *units_[index];
  std::vector<at::Tensor> full(unit.spec.parameters.size());
  if (unit.trained.empty()) return full;
  const LedgerScope scope(Purpose::kGatherBuffers);
  const at::Tensor buffer = at::empty({unit.trained.layout().full_elements()}, local.options());
  mesh_.shard().all_gather_start(ops::bytes_of(local), ops::bytes_of(buffer))->wait_on(settings_.stream);
  unit.trained.views(buffer, unit.spec, full);
  return full;
}

}  // namespace shardtune::fsdp
