#include "shardtune/fsdp/flat_shard.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"

namespace shardtune::fsdp {
namespace {

bool holds(const Part& part, const model::Parameter& parameter) {
  if (parameter.borrowed || parameter.absent) return false;
  if (!part.adapter.empty()) return parameter.adapter == part.adapter;
  return part.trained ? parameter.trainable : !parameter.trainable && parameter.adapter.empty();
}

std::vector<std::size_t> slots_of(const model::UnitSpec& unit, const Part& part) {
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot)
    if (holds(part, unit.parameters[slot])) slots.push_back(slot);
  return slots;
}

bool is_frozen(const Part& part) { return !part.trained && part.adapter.empty(); }

bool in_bytes(const model::UnitSpec& unit, const Part& part) {
  return is_frozen(part) && std::ranges::any_of(unit.parameters, [](const auto& one) { return one.packed_bytes > 0; });
}

}  // namespace

at::ScalarType buffer_type(const model::UnitSpec& unit, const Part& part, at::ScalarType type) {
  return in_bytes(unit, part) ? at::kByte : type;
}

ShardLayout layout_of(const model::UnitSpec& unit, const Part& part, std::int64_t ranks, at::ScalarType type) {
  const bool bytes = in_bytes(unit, part);
  std::vector<std::int64_t> sizes;
  for (const std::size_t slot : slots_of(unit, part)) {
    const model::Parameter& parameter = unit.parameters[slot];
    const std::int64_t dense = parameter.elements() * (bytes ? width_of(type) : 1);
    sizes.push_back(parameter.packed_bytes > 0 ? parameter.packed_bytes : dense);
  }
  return {sizes, !is_frozen(part) ? kTrainedGranule : bytes ? kByteGranule : kFrozenGranule, ranks};
}

FlatShard::FlatShard(const model::UnitSpec& unit, const Part& part, const at::TensorOptions& options, std::int64_t rank,
                     std::int64_t ranks, const at::Tensor& whole)
    : part_(part), slots_(slots_of(unit, part)), type_(c10::typeMetaToScalarType(options.dtype())),
      layout_(layout_of(unit, part, ranks, type_)), ranges_(layout_.ranges(rank)), whole_(whole) {
  for (const std::size_t slot : slots_) packed_.push_back(unit.parameters[slot].packed_bytes > 0);
  const LedgerScope scope(Purpose::kWeightShards);
  const std::int64_t elements = layout_.shard_elements();
  local_ = whole.defined() ? whole.narrow(0, rank * elements, elements)
                           : at::zeros({elements}, options.dtype(buffer_type(unit, part, type_)));
}

void FlatShard::find_slots_again(const model::UnitSpec& unit) {
  const std::size_t before = slots_.size();
  slots_ = slots_of(unit, part_);
  SHARDTUNE_CHECK(slots_.size() == before, "unit '{}' has {} parameters in a shard of {}", unit.name, slots_.size(),
                  before);
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
