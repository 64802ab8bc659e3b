// Several adapters on one sharded base: their shards come, go and change parts while the base stays as it lies.
#include <ATen/ATen.h>

#include <utility>

#include "shardtune/core/error.h"
#include "unit.h"

namespace shardtune::fsdp {

void ShardedModel::check_nothing_is_gathered() const {
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    SHARDTUNE_CHECK(units_[unit]->state == State::kSharded, "adapters change while unit {} is gathered", unit);
}

/// Parameters were entered, or their flags changed.
void ShardedModel::take_specs(const std::vector<model::UnitSpec>& stages) {
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    stages_[stage].weights.resize(stages[stage].parameters.size());
    stages_[stage].gradients.resize(stages[stage].parameters.size());
  }
  for (auto& unit : units_) {
    unit->spec = merged(stages, unit->stages);
    unit->weights.assign(unit->spec.parameters.size(), {});
    unit->gradients.assign(unit->spec.parameters.size(), {});
  }
}

void ShardedModel::find_slots_again() {
  for (auto& unit : units_) {
    unit->frozen.find_slots_again(unit->spec);
    unit->trained.find_slots_again(unit->spec);
    for (auto& [name, other] : unit->others) other.shard.find_slots_again(unit->spec);
  }
}

void ShardedModel::make_buffers_again() {
  for (Pool& pool : pools_) pool = {};
  gradient_buffers_ = {};
  send_buffer_.reset();
  receive_buffer_.reset();
  for (auto& unit : units_) {
    unit->sums = {};
    unit->spread = false;
    unit->inner_frozen.reset();
    unit->inner_trained.reset();
    for (auto& [name, other] : unit->others) other.inner.reset();
    unit->pool = 0;
  }
  choose_pools();
  make_buffers();
}

void ShardedModel::add_adapter(const std::string& name, const std::vector<model::UnitSpec>& stages,
                               bool in_checkpoints) {
  check_nothing_is_gathered();
  take_specs(stages);
  find_slots_again();
  for (auto& unit : units_) {
    FlatShard shard(unit->spec, {.adapter = name}, on_device(at::kFloat), mesh_.shard().rank(), mesh_.shard().size());
    const auto [place, added] = unit->others.emplace(name, Unit::Other{std::move(shard)});
    SHARDTUNE_CHECK(added, "adapter '{}' is there twice", name);
    place->second.in_checkpoints = in_checkpoints;
  }
}

void ShardedModel::remove_adapter(const std::string& name, const std::vector<model::UnitSpec>& stages) {
  check_nothing_is_gathered();
  for (auto& unit : units_) SHARDTUNE_CHECK(unit->others.erase(name) == 1, "no adapter '{}' to remove", name);
  take_specs(stages);
  find_slots_again();
  if (active_.erase(name) > 0) make_buffers_again();
}

void ShardedModel::set_active(std::set<std::string> names, bool trained_takes_part) {
  check_nothing_is_gathered();
  for (const std::string& name : names)
    SHARDTUNE_CHECK(units_.front()->others.contains(name), "adapter '{}' is active but not there", name);
  if (names == active_ && trained_takes_part == trained_takes_part_) return;
  active_ = std::move(names);
  trained_takes_part_ = trained_takes_part;
  make_buffers_again();
}

void ShardedModel::set_trained(const std::string& before, const std::string& after,
                               const std::vector<model::UnitSpec>& stages) {
  check_nothing_is_gathered();
  take_specs(stages);
  const auto empty = [&](const model::UnitSpec& spec) {
    return FlatShard(spec, {.trained = true}, on_device(at::kFloat), mesh_.shard().rank(), mesh_.shard().size());
  };
  for (auto& unit : units_) {
    if (!before.empty()) {
      unit->trained.set_part({.adapter = before});
      unit->others.insert_or_assign(before, Unit::Other{std::move(unit->trained)});
    }
    if (after.empty()) {
      unit->trained = empty(unit->spec);
      continue;
    }
    const auto found = unit->others.find(after);
    SHARDTUNE_CHECK(found != unit->others.end(), "adapter '{}' is to be trained but not there", after);
    unit->trained = std::move(found->second.shard);
    unit->trained.set_part({.trained = true});
    unit->others.erase(found);
  }
  find_slots_again();
  active_.erase(after);
  make_buffers_again();
}

std::vector<std::string> ShardedModel::adapters_in_checkpoints() const {
  std::vector<std::string> names;
  for (const auto& [name, other] : units_.front()->others)
    if (other.in_checkpoints) names.push_back(name);
  return names;
}

FlatShard& ShardedModel::adapter(const std::string& name, std::size_t unit) {
  const auto found = units_[unit]->others.find(name);
  SHARDTUNE_CHECK(found != units_[unit]->others.end(), "no adapter '{}' beside the trained one", name);
  return found->second.shard;
}

}  // namespace shardtune::fsdp
