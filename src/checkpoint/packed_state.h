#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <string>

#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/optim/adamw.h"

namespace shardtune::checkpoint {

/// The roles of a checkpoint: each is one packed dataset per rank, the trained shards of all units end to end.
constexpr std::array<const char*, 3> kRoles = {"weight", "exp_avg", "exp_avg_sq"};

/// The tensor of a role in a unit, this rank's shard; undefined for units without trained parameters.
at::Tensor role_shard(std::size_t role, std::size_t unit, fsdp::ShardedModel& shards, optim::AdamW& optimizer);

/// All units' shards of a role, end to end [elements] fp32.
at::Tensor pack(std::size_t role, fsdp::ShardedModel& shards, optim::AdamW& optimizer);
/// Elements of a packed role: the same for all of them.
std::int64_t packed_elements(fsdp::ShardedModel& shards);
/// The way back.
void unpack(const at::Tensor& packed, std::size_t role, fsdp::ShardedModel& shards, optim::AdamW& optimizer);

/// XXH3-128 as 32 hexadecimal digits.
std::string hash_of(const at::Tensor& tensor);

}  // namespace shardtune::checkpoint
