#include "packed_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <xxhash.h>

#include "shardtune/core/error.h"

namespace shardtune::checkpoint {

at::Tensor role_shard(std::size_t role, std::size_t unit, fsdp::ShardedModel& shards, optim::AdamW& optimizer) {
  if (shards.trained(unit).empty()) return {};
  switch (role) {
    case 0: return shards.trained(unit).local();
    case 1: return optimizer.exp_avg(unit);
    case 2: return optimizer.exp_avg_sq(unit);
    default: fail(ErrorClass::kInternal, "no checkpoint role {}", role);
  }
}

at::Tensor pack(std::size_t role, fsdp::ShardedModel& shards, optim::AdamW& optimizer) {
  std::vector<at::Tensor> parts;
  for (std::size_t unit = 0; unit < shards.units(); ++unit)
    if (at::Tensor part = role_shard(role, unit, shards, optimizer); part.defined()) parts.push_back(part);
  return parts.empty() ? at::empty({0}, at::kFloat) : at::cat(parts);
}

std::int64_t packed_elements(fsdp::ShardedModel& shards) {
  std::int64_t elements = 0;
  for (std::size_t unit = 0; unit < shards.units(); ++unit) elements += shards.trained(unit).layout().shard_elements();
  return elements;
}

void unpack(const at::Tensor& packed, std::size_t role, fsdp::ShardedModel& shards, optim::AdamW& optimizer) {
  std::int64_t first = 0;
  for (std::size_t unit = 0; unit < shards.units(); ++unit) {
    at::Tensor part = role_shard(role, unit, shards, optimizer);
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
