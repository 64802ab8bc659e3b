// The verbs that take gradients in.
#include <ATen/ATen.h>

#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "unit.h"

namespace shardtune::fsdp {
namespace {

/// sum (fp64) += elements [first, first + its own) of `parts`, one by one.
template <typename T>
void add_in_fp64(at::Tensor& sum, const at::Tensor& parts, std::int64_t first) {
  if (sum.is_meta()) return;
  auto* to = sum.mutable_data_ptr<double>();
  const T* part = parts.const_data_ptr<T>() + first;
  const std::int64_t count = sum.numel();
  for (std::int64_t i = 0; i < count; ++i) to[i] += static_cast<double>(part[i]);
}

/// The sum over a group's ranks, in rank order, of `sum` (fp64), which may have any length. Collective.
void add_over(comm::Communicator& group, at::Tensor& sum, comm::StreamRef stream) {
  const std::int64_t ranks = group.size(), count = sum.numel(), piece = (count + ranks - 1) / ranks;
  at::Tensor padded = at::zeros({piece * ranks}, sum.options()), received = at::empty_like(padded);
  padded.narrow(0, 0, count).copy_(sum);
  group.exchange_start(ops::bytes_of(padded), ops::bytes_of(received))->wait_on(stream);
  at::Tensor own = at::zeros({piece}, sum.options());
  for (std::int64_t rank = 0; rank < ranks; ++rank) add_in_fp64<double>(own, received, rank * piece);
  group.all_gather_start(ops::bytes_of(own), ops::bytes_of(padded))->wait_on(stream);
  sum.copy_(padded.narrow(0, 0, count));
}

}  // namespace

void ShardedModel::zero_gradients(std::size_t index) {
  Unit& unit = *units_[index];
  if (const std::int64_t elements = unit.trained.layout().full_elements(); elements > 0) {
    at::Tensor full = gradient_buffers_[unit.pool].narrow(0, 0, elements);
    full.zero_();
    unit.trained.views(full, unit.spec, unit.gradients);
    hand_out(unit, unit.gradients, &model::UnitTensors::gradients);
  }
  if (!borrower_ || unit_of_[borrower_->stage] != index) return;
  if (unit_of_[0] != index) zero_gradients(unit_of_[0]);
  at::Tensor& gradient = stages_[borrower_->stage].gradients[borrower_->slot];
  if (!gradient.defined()) gradient = lent(units_[unit_of_[0]]->gradients);
  if (shared_rows_)
    stages_[borrower_->stage].gradients[shared_rows_->slot] = stages_[0].gradients[shared_rows_->owner_slot];
}

void ShardedModel::reduce(std::size_t index, int use) {
  Unit& unit = *units_[index];
  for (auto& gradient : unit.gradients) gradient.reset();
  hand_out(unit, unit.gradients, &model::UnitTensors::gradients);
  const std::int64_t shard = unit.trained.layout().shard_elements();
  if (shard == 0) return;
  at::Tensor& sum = unit.sums.at(static_cast<std::size_t>(use));
  const LedgerScope scope(Purpose::kGradients);
  if (!sum.defined()) sum = at::zeros({shard}, on_device(at::kDouble));
  const at::Tensor full = gradient_buffers_[unit.pool].narrow(0, 0, unit.trained.layout().full_elements());
  comm::Communicator& group = mesh_.shard();
  if (group.size() == 1) {
    add_in_fp64<float>(sum, full, 0);
    return;
  }
  const at::Tensor received = receive_buffer_.narrow(0, 0, full.numel());
  at::Tensor sent = full;
  if (send_buffer_.defined()) sent = send_buffer_.narrow(0, 0, full.numel()).copy_(full);
  group.exchange_start(ops::bytes_of(sent), ops::bytes_of(received))->wait_on(settings_.stream);
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    if (settings_.reduce_type == at::kFloat) add_in_fp64<float>(sum, received, rank * shard);
    else add_in_fp64<at::BFloat16>(sum, received, rank * shard);
  }
}

void ShardedModel::reduce_over_replicas() {
  if (mesh_.replicate().size() == 1) return;
  const LedgerScope scope(Purpose::kGradients);
  for (auto& unit : units_)
    for (at::Tensor& sum : unit->sums)
      if (sum.defined()) add_over(mesh_.replicate(), sum, settings_.stream);
}

at::Tensor ShardedModel::reduced_gradient(std::size_t index) const {
  const LedgerScope scope(Purpose::kGradients);
  const Unit& unit = *units_[index];
  if (!unit.sums[1].defined()) {
    SHARDTUNE_CHECK(unit.sums[0].defined(), "unit {} has no gradient in this step", index);
    return unit.sums[0].to(at::kFloat);
  }
  return (unit.sums[0] + unit.sums[1]).to(at::kFloat);
}

void ShardedModel::clear_gradient_sums() {
  for (auto& unit : units_)
    for (auto& sum : unit->sums)
      if (sum.defined()) sum.zero_();
}

}  // namespace shardtune::fsdp
