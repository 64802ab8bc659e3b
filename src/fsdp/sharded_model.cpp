#include "shardtune/fsdp/sharded_model.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"
#include "unit.h"

namespace shardtune::fsdp {
namespace {

/// Parts of a buffer start at multiples of this, so that views of any type are aligned.
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int64_t frozen_bytes(const model::UnitSpec& unit, at::ScalarType type, std::int64_t ranks) {
  return layout_of(unit, {}, ranks, type).full_elements() * width_of(buffer_type(unit, {}, type));
}

/// The slot of the embedding's own rows of tokens that the head borrows; 0: the head borrows something else.
std::size_t owner_of_rows(const model::UnitSpec& embedding, const model::Parameter& borrowed) {
  for (std::size_t slot = 1; slot < embedding.parameters.size(); ++slot)
    if (!embedding.parameters[slot].base_rows.empty() && embedding.parameters[slot].name == borrowed.base_name)
      return slot;
  return 0;
}

std::vector<std::vector<std::size_t>> units_of(const ShardSettings& settings, std::size_t stages) {
  if (!settings.units.empty()) return settings.units;
  std::vector<std::vector<std::size_t>> units;
  for (std::size_t stage = 0; stage < stages; ++stage) units.push_back({stage});
  return units;
}

}  // namespace

model::UnitSpec merged(const std::vector<model::UnitSpec>& all, const std::vector<std::size_t>& stages) {
  model::UnitSpec unit = all[stages.front()];
  for (std::size_t i = 1; i < stages.size(); ++i) {
    const auto first = static_cast<std::int64_t>(unit.parameters.size());
    for (model::Parameter parameter : all[stages[i]].parameters) {
      if (parameter.replaces >= 0) parameter.replaces += first;
      unit.add(std::move(parameter));
    }
  }
  if (stages.size() > 1) unit.name += " to " + all[stages.back()].name;
  return unit;
}

std::uint64_t ShardedModel::base_bytes(const std::vector<model::UnitSpec>& stages, const ShardSettings& settings,
                                       int ranks) {
  std::int64_t bytes = 0;
  for (const auto& unit : units_of(settings, stages.size()))
    bytes += aligned(frozen_bytes(merged(stages, unit), settings.base_type, ranks));
  return static_cast<std::uint64_t>(bytes);
}

ShardedModel::ShardedModel(std::vector<model::UnitSpec> stages, const ShardSettings& settings, comm::Mesh& mesh,
                           std::unique_ptr<comm::SharedMemory> shared_base)
    : mesh_(mesh), settings_(settings), shared_base_(std::move(shared_base)) {
  settings_.units = units_of(settings, stages.size());
  head_ = model::head_stage(stages);
  stages_.resize(stages.size());
  unit_of_.resize(stages.size());
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    stages_[stage].weights.resize(stages[stage].parameters.size());
    stages_[stage].gradients.resize(stages[stage].parameters.size());
    for (std::size_t slot = 0; slot < stages[stage].parameters.size(); ++slot)
      if (const model::Parameter& one = stages[stage].parameters[slot]; one.borrowed) {
        if (one.adapter.empty()) borrower_ = Place{stage, slot};
        else if (const std::size_t owner = owner_of_rows(stages.front(), one); owner > 0)
          shared_rows_ = SharedRows{slot, owner};
      }
  }
  if (shared_base_ && !settings_.device.is_meta())
    shared_base_entry_.emplace(Purpose::kHostShared, static_cast<std::int64_t>(shared_base_->bytes().size()));
  make_units(stages);
  choose_pools();
  make_buffers();
}

ShardedModel::~ShardedModel() = default;

at::TensorOptions ShardedModel::on_device(at::ScalarType type) const {
  return at::TensorOptions().device(settings_.device).dtype(type);
}

/// A unit's frozen parameters in the memory that the node shares; on shapes alone, a tensor of that size.
at::Tensor ShardedModel::shared_part(std::int64_t first_byte, std::int64_t bytes, at::ScalarType type) {
  const LedgerScope scope(Purpose::kHostShared);
  const std::int64_t elements = bytes / width_of(type);
  if (settings_.device.is_meta()) return at::empty({elements}, on_device(type));
  return at::from_blob(shared_base_->bytes().data() + first_byte, {elements}, at::dtype(type));
}

void ShardedModel::make_units(const std::vector<model::UnitSpec>& stages) {
  std::int64_t at_byte = 0;
  for (const auto& members : settings_.units) {
    for (const std::size_t stage : members) unit_of_[stage] = units_.size();
    model::UnitSpec spec = merged(stages, members);
    comm::Communicator& holders = shared_base_ ? mesh_.node() : mesh_.shard();
    at::Tensor whole;
    if (shared_base_) {
      const std::int64_t bytes = frozen_bytes(spec, settings_.base_type, holders.size());
      whole = shared_part(at_byte, bytes, buffer_type(spec, {}, settings_.base_type));
      at_byte += aligned(bytes);
    }
    FlatShard frozen(spec, {}, on_device(settings_.base_type), holders.rank(), holders.size(), whole);
    FlatShard trained(spec, {.trained = true}, on_device(at::kFloat), mesh_.shard().rank(), mesh_.shard().size());
    units_.push_back(std::make_unique<Unit>(std::move(spec), members, std::move(frozen), std::move(trained)));
  }
}

void ShardedModel::choose_pools() {
  const auto is_weight = [](const model::Parameter& one) { return one.shape.size() > 1 && !one.borrowed; };
  for (auto& unit : units_) {
    if (unit->stages.size() > 1) continue;
    const std::size_t stage = unit->stages.front();
    // Without a weight of its own the head is needed beside the table, or beside a piece.
    if (stage == 0 || stage > head_) unit->pool = 1;
    else if (stage == head_) unit->pool = borrower_ || std::ranges::none_of(unit->spec.parameters, is_weight) ? 2 : 1;
  }
}

std::size_t ShardedModel::layer_buffers() const {
  const auto count = static_cast<std::size_t>(
      std::count_if(units_.begin(), units_.end(), [](const auto& unit) { return unit->pool == 0; }));
  const Policy& policy = settings_.policy;
  if (policy.reshard == Reshard::kAfterBackward) return count;
  const bool ahead =
      policy.input_block > 1 || policy.forward_prefetch || policy.backward_prefetch == BackwardPrefetch::kPre;
  return std::min<std::size_t>(count, ahead ? 2 : 1);
}

/// Embedding and head, or a piece of either, may take one of two layer buffers that turn over: when the embedding is needed only
/// one other unit is, and the head meets the last layer alone.
bool ShardedModel::layers_lend_buffers(std::int64_t layer_bytes, std::int64_t other_bytes) const {
  const bool turn_over = layer_buffers() == 2 && settings_.policy.reshard != Reshard::kAfterBackward && !borrower_;
  return turn_over && 2 * std::max(layer_bytes, other_bytes) <= 2 * layer_bytes + other_bytes;
}

void ShardedModel::make_buffers() {
  const LedgerScope scope(Purpose::kGatherBuffers);
  const bool alone = mesh_.shard().size() == 1;
  std::array<std::int64_t, 3> bytes{}, trained_elements{};
  for (auto& unit : units_) {
    const std::int64_t trained = unit->trained.layout().full_elements();
    const auto room = [&](const FlatShard& shard, bool active, at::Tensor& cast) -> std::int64_t {
      if (settings_.trained_type != at::kFloat)
        cast = active ? at::empty({shard.layout().shard_elements()}, on_device(settings_.trained_type)) : at::Tensor();
      return alone || !active ? 0 : aligned(shard.layout().full_elements() * width_of(settings_.trained_type));
    };
    unit->trained_bytes = room(unit->trained, trained_takes_part_, unit->cast);
    for (auto& [name, other] : unit->others) other.bytes = room(other.shard, active_.contains(name), other.cast);
    if (!alone && !shared_base_)
      unit->frozen_bytes = aligned(frozen_bytes(unit->spec, settings_.base_type, mesh_.shard().size()));
    bytes[unit->pool] = std::max(bytes[unit->pool], unit->gathered_bytes());
    trained_elements[unit->pool] = std::max(trained_elements[unit->pool], trained);
  }
  if (layers_lend_buffers(bytes[0], bytes[1])) {
    for (auto& unit : units_)
      if (unit->pool == 1) unit->pool = 0;
    bytes[0] = std::max(bytes[0], bytes[1]);
    trained_elements[0] = std::max(trained_elements[0], trained_elements[1]);
    bytes[1] = trained_elements[1] = 0;
  }
  for (std::size_t p = 0; p < pools_.size(); ++p) {
    if (settings_.gradients) {
      const LedgerScope gradients(Purpose::kGradients);
      gradient_buffers_[p] = at::empty({trained_elements[p]}, on_device(at::kFloat));
    }
    const std::size_t count = bytes[p] == 0 ? 0 : p == 0 ? layer_buffers() : 1;
    for (std::size_t i = 0; i < count; ++i) pools_[p].buffers.push_back(at::empty({bytes[p]}, on_device(at::kByte)));
    pools_[p].occupants.resize(count);
  }
  // One rank alone sends nothing.
  if (alone || !settings_.gradients) return;
  const LedgerScope gradients(Purpose::kGradients);
  const std::int64_t largest = *std::max_element(trained_elements.begin(), trained_elements.end());
  receive_buffer_ = at::empty({largest}, on_device(settings_.reduce_type));
  if (settings_.reduce_type != at::kFloat) send_buffer_ = at::empty({largest}, on_device(settings_.reduce_type));
}

void ShardedModel::base_loaded() {
  if (shared_base_) shared_base_->fence();
}

const model::UnitSpec& ShardedModel::spec(std::size_t unit) const { return units_[unit]->spec; }
const std::vector<std::size_t>& ShardedModel::stages_of(std::size_t unit) const { return units_[unit]->stages; }
FlatShard& ShardedModel::frozen(std::size_t unit) { return units_[unit]->frozen; }
FlatShard& ShardedModel::trained(std::size_t unit) { return units_[unit]->trained; }
model::UnitTensors& ShardedModel::stage(std::size_t stage) { return stages_[stage]; }
bool ShardedModel::is_gathered(std::size_t unit) const { return units_[unit]->state == State::kGathered; }

}  // namespace shardtune::fsdp
