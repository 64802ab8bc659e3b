#include "shardtune/export/full_tensors.h"

#include <ATen/ATen.h>

#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/shape_only.h"

namespace shardtune::exporting {

io::TensorView FullTensor::view(const std::string& file_name) const {
  return {.name = file_name,
          .dtype = ops::dtype_of(value.scalar_type()),
          .shape = value.sizes().vec(),
          .data = ops::bytes_of(value)};
}

namespace {

/// `gather`: the full tensors of a unit by slot, undefined where there is none.
template <typename Gather>
std::vector<FullTensor> gather_units(fsdp::ShardedModel& shards, comm::Communicator& communicator, at::ScalarType type,
                                     Gather gather) {
  std::vector<FullTensor> out;
  for (std::size_t unit = 0; unit < shards.units(); ++unit) {
    const std::vector<at::Tensor> full = gather(unit);
    if (communicator.rank() != 0) continue;
    for (std::size_t slot = 0; slot < full.size(); ++slot) {
      if (!full[slot].defined()) continue;
      // Beside a GPU the result lies on the host.
      const LedgerScope scope(ops::goes_cpu_way(full[slot]) ? Purpose::kResult : Purpose::kHostPinned);
      out.push_back({shards.spec(unit).parameters[slot].name, full[slot].to(type).clone()});
    }
  }
  return out;
}

}  // namespace

std::vector<FullTensor> gather_adapter(const std::string& name, fsdp::ShardedModel& shards,
                                       comm::Communicator& communicator, at::ScalarType type) {
  return gather_units(shards, communicator, type, [&](std::size_t unit) { return shards.gather_adapter(name, unit); });
}

std::vector<FullTensor> gather_trained(fsdp::ShardedModel& shards, comm::Communicator& communicator,
                                       at::ScalarType type) {
  return gather_units(shards, communicator, type,
                      [&](std::size_t unit) { return shards.gather_trained(unit, shards.trained(unit).local()); });
}

}  // namespace shardtune::exporting
