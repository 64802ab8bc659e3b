#include "packed_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "shardtune/core/ops.h"

namespace shardtune::checkpoint {

std::vector<optim::StateRole> roles_of(const fsdp::ShardedModel& shards, const optim::Optimizer& optimizer) {
  std::vector<optim::StateRole> roles = {{"weight"}};
  roles.insert(roles.end(), optimizer.roles().begin(), optimizer.roles().end());
  for (std::string name : shards.adapters_in_checkpoints()) {
    std::ranges::replace(name, '/', ' ');  // HDF5 would make a group of it
    roles.push_back({"adapter " + name});
  }
  return roles;
}

at::Tensor role_part(std::size_t role, std::size_t unit, fsdp::ShardedModel& shards,
                     const optim::Optimizer& optimizer) {
  if (const std::size_t own = 1 + optimizer.roles().size(); role >= own) {
    fsdp::FlatShard& shard = shards.adapter(shards.adapters_in_checkpoints()[role - own], unit);
    return shard.empty() ? at::Tensor() : shard.local();
  }
  if (shards.trained(unit).empty()) return {};
  return role == 0 ? shards.trained(unit).local() : optimizer.state(role - 1, unit);
}

at::Tensor pack(std::size_t role, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parts;
  for (std::size_t unit = 0; unit < shards.units(); ++unit)
    if (at::Tensor part = role_part(role, unit, shards, optimizer); part.defined()) parts.push_back(part);
  return parts.empty() ? room_for(role, shards, optimizer) : at::cat(parts);
}

at::Tensor room_for(std::size_t role, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer) {
  std::int64_t elements = 0;
  for (std::size_t unit = 0; unit < shards.units(); ++unit)
    if (const at::Tensor part = role_part(role, unit, shards, optimizer); part.defined()) elements += part.numel();
  return at::empty({elements}, ops::scalar_type(roles_of(shards, optimizer)[role].dtype));
}

void unpack(const at::Tensor& packed, std::size_t role, fsdp::ShardedModel& shards, optim::Optimizer& optimizer) {
  std::int64_t first = 0;
  for (std::size_t unit = 0; unit < shards.units(); ++unit) {
    at::Tensor part = role_part(role, unit, shards, optimizer);
    if (!part.defined()) continue;
    part.copy_(packed.narrow(0, first, part.numel()));
    first += part.numel();
  }
}

std::string hash_of(const at::Tensor& tensor) {
  const XXH128_hash_t hash = XXH3_128bits(tensor.const_data_ptr(), static_cast<std::size_t>(tensor.nbytes()));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace shardtune::checkpoint
