#include "full_tensors.h"

#include <ATen/ATen.h>

#include "shardtune/core/ops.h"

namespace shardtune::exporting {

io::TensorView FullTensor::view(const std::string& file_name) const {
  return {.name = file_name,
          .dtype = ops::dtype_of(value.scalar_type()),
          .shape = value.sizes().vec(),
          .data = {static_cast<const std::byte*>(value.const_data_ptr()), static_cast<std::size_t>(value.nbytes())}};
}

std::vector<FullTensor> gather_trained(fsdp::ShardedModel& shards, comm::Communicator& communicator,
                                       at::ScalarType type) {
  std::vector<FullTensor> out;
  for (std::size_t unit = 0; unit < shards.units(); ++unit) {
    if (shards.trained(unit).empty()) continue;
    const fsdp::FlatShard& shard = shards.trained(unit);
    at::Tensor full = at::empty({shard.layout().full_elements()}, at::kFloat);
    const at::Tensor& local = shard.local();
    communicator
        .all_gather_start(
            {static_cast<const std::byte*>(local.const_data_ptr()), static_cast<std::size_t>(local.nbytes())},
            {static_cast<std::byte*>(full.mutable_data_ptr()), static_cast<std::size_t>(full.nbytes())})
        ->wait();
    if (communicator.rank() != 0) continue;
    std::vector<at::Tensor> views(shards.spec(unit).parameters.size());
    shard.views(full, shards.spec(unit), views);
    for (std::size_t slot = 0; slot < views.size(); ++slot)
      if (views[slot].defined()) out.push_back({shards.spec(unit).parameters[slot].name, views[slot].to(type).clone()});
  }
  return out;
}

}  // namespace shardtune::exporting
