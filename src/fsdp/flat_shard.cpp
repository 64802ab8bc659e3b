#include "shardtune/fsdp/flat_shard.h"

#include <ATen/ATen.h>

#include "shardtune/core/ledger.h"

namespace shardtune::fsdp {
namespace {

std::vector<std::size_t> slots_of(const model::UnitSpec& unit, bool trained) {
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot)
    if (unit.parameters[slot].trainable == trained && !unit.parameters[slot].borrowed) slots.push_back(slot);
  return slots;
}

std::vector<std::int64_t> sizes_of(const model::UnitSpec& unit, const std::vector<std::size_t>& slots) {
  std::vector<std::int64_t> sizes;
  for (const std::size_t slot : slots) {
    const model::Parameter& parameter = unit.parameters[slot];
    sizes.push_back(parameter.stored_bytes > 0 ? parameter.stored_bytes : parameter.elements());
  }
  return sizes;
}

}  // namespace

ShardLayout layout_of(const model::UnitSpec& unit, bool trained, std::int64_t ranks) {
  return {sizes_of(unit, slots_of(unit, trained)), trained ? kTrainedGranule : kFrozenGranule, ranks};
}

FlatShard::FlatShard(const model::UnitSpec& unit, bool trained, const at::TensorOptions& options, std::int64_t rank,
                     std::int64_t ranks, const at::Tensor& whole)
    : slots_(slots_of(unit, trained)), layout_(layout_of(unit, trained, ranks)), ranges_(layout_.ranges(rank)),
      whole_(whole) {
  const LedgerScope scope(Purpose::kWeightShards);
  const std::int64_t elements = layout_.shard_elements();
  local_ = whole.defined() ? whole.narrow(0, rank * elements, elements) : at::zeros({elements}, options);
}

void FlatShard::for_each_range(const std::function<void(std::size_t, std::int64_t, std::int64_t, at::Tensor)>& visit) {
  for_each_range_of(local_, visit);
}

void FlatShard::for_each_range_of(
    at::Tensor flat, const std::function<void(std::size_t, std::int64_t, std::int64_t, at::Tensor)>& visit) {
  for (const TensorRange& range : ranges_)
    visit(slots_[range.tensor], range.begin, range.end, flat.narrow(0, range.flat_begin, range.end - range.begin));
}

void FlatShard::views(const at::Tensor& full, const model::UnitSpec& unit, std::vector<at::Tensor>& out) const {
  for (std::size_t t = 0; t < slots_.size(); ++t) {
    const model::Parameter& parameter = unit.parameters[slots_[t]];
    const at::Tensor part = full.narrow(0, layout_.offset(t), layout_.size(t));
    if (parameter.quantised) out[slots_[t]] = part;
    else if (parameter.stored_bytes > 0) out[slots_[t]] = part.view(at::kBFloat16).view(parameter.shape);
    else out[slots_[t]] = part.view(parameter.shape);
  }
}

}  // namespace shardtune::fsdp
