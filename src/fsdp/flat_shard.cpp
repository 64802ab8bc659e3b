#include "shardtune/fsdp/flat_shard.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/core/ledger.h"

namespace shardtune::fsdp {
namespace {

std::vector<std::size_t> slots_of(const model::UnitSpec& unit, bool trained) {
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot)
    if (unit.parameters[slot].trainable == trained && !unit.parameters[slot].borrowed) slots.push_back(slot);
  return slots;
}

bool in_bytes(const model::UnitSpec& unit, bool trained) {
  return !trained && std::ranges::any_of(unit.parameters, [](const auto& one) { return one.packed_bytes > 0; });
}

}  // namespace

at::ScalarType buffer_type(const model::UnitSpec& unit, bool trained, at::ScalarType type) {
  return in_bytes(unit, trained) ? at::kByte : type;
}

ShardLayout layout_of(const model::UnitSpec& unit, bool trained, std::int64_t ranks, at::ScalarType type) {
  const bool bytes = in_bytes(unit, trained);
  std::vector<std::int64_t> sizes;
  for (const std::size_t slot : slots_of(unit, trained)) {
    const model::Parameter& parameter = unit.parameters[slot];
    const std::int64_t dense = parameter.elements() * (bytes ? width_of(type) : 1);
    sizes.push_back(parameter.packed_bytes > 0 ? parameter.packed_bytes : dense);
  }
  return {sizes, trained ? kTrainedGranule : bytes ? kByteGranule : kFrozenGranule, ranks};
}

FlatShard::FlatShard(const model::UnitSpec& unit, bool trained, const at::TensorOptions& options, std::int64_t rank,
                     std::int64_t ranks, const at::Tensor& whole)
    : slots_(slots_of(unit, trained)), type_(c10::typeMetaToScalarType(options.dtype())),
      layout_(layout_of(unit, trained, ranks, type_)), ranges_(layout_.ranges(rank)), whole_(whole) {
  for (const std::size_t slot : slots_) packed_.push_back(unit.parameters[slot].packed_bytes > 0);
  const LedgerScope scope(Purpose::kWeightShards);
  const std::int64_t elements = layout_.shard_elements();
  local_ = whole.defined() ? whole.narrow(0, rank * elements, elements)
                           : at::zeros({elements}, options.dtype(buffer_type(unit, trained, type_)));
}

at::Tensor FlatShard::typed(std::size_t tensor, const at::Tensor& part) const {
  return part.scalar_type() == at::kByte && !packed_[tensor] ? part.view(type_) : part;
}

void FlatShard::for_each_range(const std::function<void(std::size_t, std::int64_t, std::int64_t, at::Tensor)>& visit) {
  for_each_range_of(local_, visit);
}

void FlatShard::for_each_range_of(
    at::Tensor flat, const std::function<void(std::size_t, std::int64_t, std::int64_t, at::Tensor)>& visit) {
  for (const TensorRange& range : ranges_) {
    const at::Tensor part = typed(range.tensor, flat.narrow(0, range.flat_begin, range.end - range.begin));
    const std::int64_t units = (range.end - range.begin) / part.numel();  // bytes of an element, or 1
    visit(slots_[range.tensor], range.begin / units, range.end / units, part);
  }
}

void FlatShard::views(const at::Tensor& full, const model::UnitSpec& unit, std::vector<at::Tensor>& out) const {
  for (std::size_t t = 0; t < slots_.size(); ++t) {
    const at::Tensor part = typed(t, full.narrow(0, layout_.offset(t), layout_.size(t)));
    out[slots_[t]] = packed_[t] ? part : part.view(unit.parameters[slots_[t]].shape);
  }
}

}  // namespace shardtune::fsdp
