#include "shardtune/fsdp/schedule.h"

#include <algorithm>
#include <utility>

namespace shardtune::fsdp {

Schedule::Schedule(ShardedModel& model, const Policy& policy, bool tied, Pieces pieces)
    : model_(model), policy_(policy), pieces_(std::move(pieces)), last_(model.head_unit()), table_(model.unit_of(0)),
      table_apart_(tied && last_ != table_) {}

void Schedule::enter_table_piece(std::size_t i) {
  model_.unshard(pieces_.table[i]);
  if (!policy_.forward_prefetch) return;
  if (i + 1 < pieces_.table.size()) model_.prefetch_if_room(pieces_.table[i + 1]);
  else model_.prefetch_if_room(table_ + 1);
}

void Schedule::leave_table_piece(std::size_t i) { model_.reshard(pieces_.table[i]); }

void Schedule::enter_head_piece(std::size_t i) {
  model_.unshard(pieces_.head[i]);
  if (policy_.forward_prefetch && i + 1 < pieces_.head.size()) model_.prefetch_if_room(pieces_.head[i + 1]);
}

void Schedule::leave_head_piece(std::size_t i) { model_.reshard(pieces_.head[i]); }

bool Schedule::has_layers(std::size_t unit) const { return model_.stages_of(unit).back() > 0 && unit != last_; }

void Schedule::enter_forward(std::size_t unit) {
  model_.unshard(unit);
  if (!policy_.forward_prefetch) return;
  if (turns_next(unit) && table_apart_) model_.prefetch(table_);
  model_.prefetch(unit + 1);
  if (turns_next(unit) && !pieces_.head.empty()) model_.prefetch_if_room(pieces_.head.front());
}

void Schedule::leave_forward(std::size_t unit, bool training) {
  const bool keeps_all = policy_.reshard == Reshard::kAfterBackward;
  if (!has_layers(unit)) {
    if (!(keeps_all && table_apart_)) model_.reshard(unit);
    return;
  }
  if (training && (keeps_all || turns_next(unit))) return;
  if (training && policy_.reshard == Reshard::kToInnerGroup) model_.reshard_to_inner(unit);
  else model_.reshard(unit);
}

bool Schedule::stays(std::size_t unit) const {
  const auto& stages = model_.stages_of(unit);
  const bool one_end_alone = stages.size() == 1 && (unit == table_ || unit == last_);
  return policy_.reshard == Reshard::kAfterBackward && (table_apart_ || !one_end_alone);
}

void Schedule::leave_pass(std::size_t unit) {
  if (!stays(unit)) model_.reshard(unit);
}

void Schedule::leave_turn_of_pass() {
  if (!stays(last_)) model_.reshard(last_);
  if (table_apart_ && !stays(table_)) model_.reshard(table_);
}

void Schedule::end_passes() {
  for (std::size_t unit = 0; unit < model_.units(); ++unit)
    if (model_.is_gathered(unit)) model_.reshard(unit);
}

void Schedule::enter_turn() {
  if (table_apart_) model_.unshard(table_);
  model_.unshard(last_);
}

void Schedule::leave_turn() {
  model_.reshard(last_);
  if (table_apart_) model_.reshard(table_);
}

/// Of the unit's layers; the embedding may stand before it.
std::int64_t Schedule::first_layer(std::size_t unit) const {
  return std::max<std::int64_t>(static_cast<std::int64_t>(model_.stages_of(unit).front()), 1) - 1;
}

std::size_t Schedule::runs_again_from(std::size_t unit) const {
  const std::int64_t block = policy_.input_block, first = first_layer(unit);
  if (!has_layers(unit) || first % block == 0) return unit;
  // The unit behind, which backward has passed, needed the same block.
  const bool done = has_layers(unit + 1) && first_layer(unit + 1) / block == first / block;
  return done ? unit : model_.unit_of(static_cast<std::size_t>(first - first % block + 1));
}

void Schedule::enter_again(std::size_t unit, std::size_t before) {
  model_.unshard(unit);
  if (policy_.backward_prefetch != BackwardPrefetch::kPre) return;
  // Two buffers: after the turn the last layer's unit holds one of them all the time.
  if (unit + 1 < before && model_.is_gathered(before)) return;
  model_.prefetch(unit + 1 < before ? unit + 1 : before);
}

void Schedule::leave_again(std::size_t unit, std::size_t before) {
  // The last of them is the first that backward meets after `before`.
  if (policy_.reshard == Reshard::kAfterBackward || unit + 1 == before) return;
  if (policy_.reshard == Reshard::kToInnerGroup) model_.reshard_to_inner(unit);
  else model_.reshard(unit);
}

void Schedule::prefetch_before(std::size_t unit) {
  if (unit > 0 && has_layers(unit - 1)) model_.prefetch(runs_again_from(unit - 1));
}

void Schedule::enter_backward(std::size_t unit) {
  if (!has_layers(unit)) return;
  model_.unshard(unit);
  if (policy_.backward_prefetch == BackwardPrefetch::kPre) prefetch_before(unit);
}

void Schedule::leave_backward(std::size_t unit) {
  if (!has_layers(unit)) return;
  model_.reshard(unit);
  if (policy_.backward_prefetch == BackwardPrefetch::kPost) prefetch_before(unit);
}

}  // namespace shardtune::fsdp
