// The verbs that bring full weights and let them go.
#include <ATen/ATen.h>

#include <algorithm>

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
void ShardedModel::gather_part(Unit& unit, FlatShard& shard, at::Tensor local, const at::Tensor& inner,
                               const at::Tensor& into) {
  const std::int64_t bytes = shard.layout().full_elements() * static_cast<std::int64_t>(local.element_size());
  const at::Tensor full = into.narrow(0, 0, bytes);
  comm::Communicator& group = unit.spread ? mesh_.inner() : mesh_.shard();
  unit.pending.push_back(group.all_gather_start(ops::bytes_of(unit.spread ? inner : local), ops::bytes_of(full)));
  shard.views(full.view(local.scalar_type()), unit.spec, unit.weights);
}

void ShardedModel::start_gather(std::size_t index) {
  Unit& unit = *units_[index];
  SHARDTUNE_CHECK(unit.state == State::kSharded, "unit {} is gathered twice", index);
  unit.state = State::kGathering;
  if (unit.gathered_bytes() > 0) unit.buffer = take_buffer(index);
  if (!unit.frozen.empty()) {
    if (unit.frozen_bytes > 0)
      gather_part(unit, unit.frozen, unit.frozen.local(), unit.inner_frozen,
                  unit.buffer.narrow(0, 0, unit.frozen_bytes));
    else
      unit.frozen.views(unit.frozen.whole().defined() ? unit.frozen.whole() : unit.frozen.local(), unit.spec,
                        unit.weights);
  }
  std::int64_t at_byte = unit.frozen_bytes;
  const auto gather_fp32 = [&](FlatShard& shard, at::Tensor& cast, const at::Tensor& inner, std::int64_t bytes) {
    if (shard.empty()) return;
    if (cast.defined()) cast.copy_(shard.local());
    const at::Tensor local = cast.defined() ? cast : shard.local();
    if (bytes > 0) gather_part(unit, shard, local, inner, unit.buffer.narrow(0, at_byte, bytes));
    else shard.views(local, unit.spec, unit.weights);
    at_byte += bytes;
  };
  if (trained_takes_part_) gather_fp32(unit.trained, unit.cast, unit.inner_trained, unit.trained_bytes);
  for (auto& [name, other] : unit.others)
    if (active_.contains(name)) gather_fp32(other.shard, other.cast, other.inner, other.bytes);
}

void ShardedModel::prefetch(std::size_t unit) {
  if (units_[unit]->state == State::kSharded) start_gather(unit);
}

void ShardedModel::prefetch_if_room(std::size_t index) {
  const Unit& unit = *units_[index];
  const auto& occupants = pools_[unit.pool].occupants;
  const bool room =
      unit.gathered_bytes() == 0 || std::ranges::any_of(occupants, [](const auto& occupant) { return !occupant; });
  if (room) prefetch(index);
}

void ShardedModel::hand_out(const Unit& unit, const std::vector<at::Tensor>& tensors,
                            std::vector<at::Tensor> model::UnitTensors::*kind) {
  std::vector<at::Tensor> used = tensors;
  for (std::size_t slot = 0; slot < tensors.size(); ++slot)
    if (const std::int64_t replaced = unit.spec.parameters[slot].replaces; replaced >= 0 && tensors[slot].defined())
      used[static_cast<std::size_t>(replaced)] = tensors[slot];
  std::size_t slot = 0;
  for (const std::size_t stage : unit.stages)
    for (at::Tensor& tensor : stages_[stage].*kind) tensor = used[slot++];
}

const at::Tensor& ShardedModel::lent(const std::vector<at::Tensor>& of_owner) const {
  const Unit &owner = *units_[unit_of_[0]], &head = *units_[unit_of_[borrower_->stage]];
  for (const model::Parameter& tied : head.spec.parameters) {
    if (!tied.borrowed || tied.adapter.empty() || tied.absent) continue;
    for (std::size_t slot = 0; slot < of_owner.size(); ++slot)
      if (const model::Parameter& one = owner.spec.parameters[slot];
          one.replaces == 0 && one.adapter == tied.adapter && of_owner[slot].defined())
        return of_owner[slot];
  }
  return of_owner.front();
}

void ShardedModel::borrow_weight() {
  const Unit& owner = *units_[unit_of_[0]];
  SHARDTUNE_CHECK(owner.state == State::kGathered, "stage {} borrows from stage 0, which is not gathered",
                  borrower_->stage);
  at::Tensor& weight = stages_[borrower_->stage].weights[borrower_->slot];
  if (!weight.defined()) weight = lent(owner.weights);  // else an adapter has a head of its own
  if (shared_rows_)
    stages_[borrower_->stage].weights[shared_rows_->slot] = stages_[0].weights[shared_rows_->owner_slot];
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
  const std::int64_t width = width_of(settings_.trained_type);
  keep(unit.trained, unit.frozen_bytes, unit.trained_bytes, width, unit.inner_trained);
  std::int64_t at_byte = unit.frozen_bytes + unit.trained_bytes;
  for (auto& [name, other] : unit.others) {
    keep(other.shard, at_byte, other.bytes, width, other.inner);
    at_byte += other.bytes;
  }
  reshard(index);
  unit.spread = unit.gathered_bytes() > 0;
}

std::vector<at::Tensor> ShardedModel::gather_full(const FlatShard& shard, const model::UnitSpec& spec,
                                                  const at::Tensor& local) {
  std::vector<at::Tensor> full(spec.parameters.size());
  if (shard.empty()) return full;
  const LedgerScope scope(Purpose::kGatherBuffers);
  const at::Tensor buffer = at::empty({shard.layout().full_elements()}, local.options());
  mesh_.shard().all_gather_start(ops::bytes_of(local), ops::bytes_of(buffer))->wait_on(settings_.stream);
  shard.views(buffer, spec, full);
  return full;
}

std::vector<at::Tensor> ShardedModel::gather_trained(std::size_t index, const at::Tensor& local) {
  return gather_full(units_[index]->trained, units_[index]->spec, local);
}

std::vector<at::Tensor> ShardedModel::gather_adapter(const std::string& name, std::size_t index) {
  const FlatShard& shard = adapter(name, index);
  return gather_full(shard, units_[index]->spec, shard.local());
}

}  // namespace shardtune::fsdp
