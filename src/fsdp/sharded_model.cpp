#include "shardtune/fsdp/sharded_model.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::fsdp {
namespace {

/// Parts of a gather buffer start at multiples of this, so that views of any type are aligned.
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// sum += part, element by element, in fp64.
void add_fp32(at::Tensor& sum, const float* part) {
  auto* to = sum.mutable_data_ptr<double>();
  const std::int64_t count = sum.numel();
  for (std::int64_t i = 0; i < count; ++i) to[i] += static_cast<double>(part[i]);
}

}  // namespace

struct ShardedModel::Unit {
  Unit(model::UnitSpec unit_spec, at::ScalarType base_type, std::int64_t rank, std::int64_t ranks)
      : spec(std::move(unit_spec)), frozen(spec, false, base_type, rank, ranks),
        trained(spec, true, at::kFloat, rank, ranks) {
    tensors.weights.resize(spec.parameters.size());
    tensors.gradients.resize(spec.parameters.size());
  }

  std::int64_t gathered_bytes() const { return aligned(frozen.full_bytes()) + aligned(trained.full_bytes()); }
  bool borrows() const {
    return std::any_of(spec.parameters.begin(), spec.parameters.end(), [](const auto& p) { return p.borrowed; });
  }

  model::UnitSpec spec;
  FlatShard frozen, trained;
  State state = State::kSharded;
  std::size_t pool = 0;
  std::vector<std::unique_ptr<comm::Pending>> pending;
  model::UnitTensors tensors;
  std::array<at::Tensor, 2> sums;  ///< fp64, by use; made when first needed
};

ShardedModel::ShardedModel(std::vector<model::UnitSpec> model_units, at::ScalarType base_type,
                           comm::Communicator& communicator)
    : communicator_(communicator) {
  for (auto& unit : model_units)
    units_.push_back(std::make_unique<Unit>(std::move(unit), base_type, communicator.rank(), communicator.size()));
  const std::size_t head = units_.size() - 1;
  units_[0]->pool = 1;
  units_[head]->pool = units_[head]->borrows() ? 2 : 1;
  std::array<std::int64_t, 3> trained_elements{};
  for (const auto& unit : units_)
    trained_elements[unit->pool] = std::max(trained_elements[unit->pool], unit->trained.layout().full_elements());
  for (std::size_t p = 0; p < pools_.size(); ++p) gradient_buffers_[p] = at::empty({trained_elements[p]}, at::kFloat);
  // One rank alone works on its shards in place: nothing to gather, nothing to send.
  if (communicator.size() == 1) return;
  receive_buffer_ = at::empty({*std::max_element(trained_elements.begin(), trained_elements.end())}, at::kFloat);
  make_pools();
}

void ShardedModel::make_pools() {
  std::array<std::int64_t, 3> bytes{};
  for (const auto& unit : units_) bytes[unit->pool] = std::max(bytes[unit->pool], unit->gathered_bytes());
  for (std::size_t p = 0; p < pools_.size(); ++p) {
    const std::size_t count = p == 0 ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) pools_[p].buffers.push_back(at::empty({bytes[p]}, at::kByte));
    pools_[p].occupants.resize(count);
  }
}

ShardedModel::~ShardedModel() = default;

const model::UnitSpec& ShardedModel::spec(std::size_t unit) const { return units_[unit]->spec; }
FlatShard& ShardedModel::frozen(std::size_t unit) { return units_[unit]->frozen; }
FlatShard& ShardedModel::trained(std::size_t unit) { return units_[unit]->trained; }
std::vector<at::Tensor>& ShardedModel::gradients(std::size_t unit) { return units_[unit]->tensors.gradients; }
bool ShardedModel::is_gathered(std::size_t unit) const { return units_[unit]->state == State::kGathered; }

at::Tensor ShardedModel::take_buffer(std::size_t unit) {
  Pool& pool = pools_[units_[unit]->pool];
  for (std::size_t i = 0; i < pool.buffers.size(); ++i)
    if (!pool.occupants[i]) {
      pool.occupants[i] = unit;
      return pool.buffers[i];
    }
  fail(ErrorClass::kInternal, "unit {} wants a gather buffer, but all {} are taken (the first by unit {})", unit,
       pool.buffers.size(), *pool.occupants[0]);
}

void ShardedModel::start_gather(std::size_t index) {
  Unit& unit = *units_[index];
  SHARDTUNE_CHECK(unit.state == State::kSharded, "unit {} is gathered twice", index);
  unit.state = State::kGathering;
  if (communicator_.size() == 1) {
    if (!unit.frozen.empty()) unit.frozen.views(unit.frozen.local(), unit.spec, unit.tensors.weights);
    if (!unit.trained.empty()) unit.trained.views(unit.trained.local(), unit.spec, unit.tensors.weights);
    return;
  }
  const at::Tensor buffer = take_buffer(index);
  std::int64_t at_byte = 0;
  for (FlatShard* shard : {&unit.frozen, &unit.trained}) {
    if (shard->empty()) continue;
    const at::Tensor bytes = buffer.narrow(0, at_byte, shard->full_bytes());
    unit.pending.push_back(communicator_.all_gather_start(ops::bytes_of(shard->local()), ops::bytes_of(bytes)));
    shard->views(bytes.view(shard->local().scalar_type()), unit.spec, unit.tensors.weights);
    at_byte += aligned(shard->full_bytes());
  }
}

void ShardedModel::prefetch(std::size_t unit) {
  if (units_[unit]->state == State::kSharded) start_gather(unit);
}

void ShardedModel::borrow(std::size_t index) {
  Unit& unit = *units_[index];
  if (!unit.borrows()) return;
  const Unit& owner = *units_[0];
  SHARDTUNE_CHECK(owner.state == State::kGathered, "unit {} borrows from unit 0, which is not gathered", index);
  for (std::size_t slot = 0; slot < unit.spec.parameters.size(); ++slot)
    if (unit.spec.parameters[slot].borrowed) unit.tensors.weights[slot] = owner.tensors.weights[0];
}

model::UnitTensors& ShardedModel::unshard(std::size_t index) {
  prefetch(index);
  Unit& unit = *units_[index];
  for (auto& pending : unit.pending) pending->wait();
  unit.pending.clear();
  unit.state = State::kGathered;
  borrow(index);
  return unit.tensors;
}

void ShardedModel::reshard(std::size_t index) {
  Unit& unit = *units_[index];
  SHARDTUNE_CHECK(unit.state == State::kGathered, "unit {} is resharded but not gathered", index);
  unit.state = State::kSharded;
  for (auto& weight : unit.tensors.weights) weight.reset();
  for (auto& occupant : pools_[unit.pool].occupants)
    if (occupant == index) occupant.reset();
}

void ShardedModel::zero_gradients(std::size_t index) {
  Unit& unit = *units_[index];
  if (const std::int64_t elements = unit.trained.layout().full_elements(); elements > 0) {
    at::Tensor full = gradient_buffers_[unit.pool].narrow(0, 0, elements);
    full.zero_();
    unit.trained.views(full, unit.spec, unit.tensors.gradients);
  }
  if (!unit.borrows()) return;
  zero_gradients(0);
  for (std::size_t slot = 0; slot < unit.spec.parameters.size(); ++slot)
    if (unit.spec.parameters[slot].borrowed) unit.tensors.gradients[slot] = units_[0]->tensors.gradients[0];
}

void ShardedModel::reduce(std::size_t index, int use) {
  Unit& unit = *units_[index];
  for (auto& gradient : unit.tensors.gradients) gradient.reset();
  const std::int64_t shard = unit.trained.layout().shard_elements();
  if (shard == 0) return;
  at::Tensor& sum = unit.sums.at(static_cast<std::size_t>(use));
  if (!sum.defined()) sum = at::zeros({shard}, at::kDouble);
  const at::Tensor full = gradient_buffers_[unit.pool].narrow(0, 0, unit.trained.layout().full_elements());
  if (communicator_.size() == 1) {
    add_fp32(sum, full.const_data_ptr<float>());
    return;
  }
  at::Tensor received = receive_buffer_.narrow(0, 0, full.numel());
  communicator_.exchange_start(ops::bytes_of(full), ops::bytes_of(received))->wait();
  for (int rank = 0; rank < communicator_.size(); ++rank)
    add_fp32(sum, received.const_data_ptr<float>() + rank * shard);
}

at::Tensor ShardedModel::reduced_gradient(std::size_t index) const {
  const Unit& unit = *units_[index];
  if (!unit.sums[1].defined()) {
    SHARDTUNE_CHECK(unit.sums[0].defined(), "unit {} has no gradient in this step", index);
    return unit.sums[0].to(at::kFloat);
  }
  return (unit.sums[0] + unit.sums[1]).to(at::kFloat);
}

std::vector<at::Tensor> ShardedModel::gather_trained(std::size_t index, const at::Tensor& local) {
  const Unit& unit = *units_[index];
  std::vector<at::Tensor> full(unit.spec.parameters.size());
  if (unit.trained.empty()) return full;
  const at::Tensor buffer = at::empty({unit.trained.layout().full_elements()}, local.options());
  communicator_.all_gather_start(ops::bytes_of(local), ops::bytes_of(buffer))->wait();
  unit.trained.views(buffer, unit.spec, full);
  return full;
}

void ShardedModel::clear_gradient_sums() {
  for (auto& unit : units_)
    for (auto& sum : unit->sums)
      if (sum.defined()) sum.zero_();
}

}  // namespace shardtune::fsdp
