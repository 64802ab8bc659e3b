#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/optim/optimizer.h"

namespace shardtune::checkpoint {

/// The roles of a checkpoint: each is one packed dataset per rank, this rank's part of all units end to end. "weight" is the
/// first, the optimizer's follow, then the weights of adapters that are frozen but in no file.
std::vector<optim::StateRole> roles_of(const fsdp::ShardedModel& shards, const optim::Optimizer& optimizer);

/// The tensor of a role in a unit, this rank's part; undefined where there is none.
at::Tensor role_part(std::size_t role, std::size_t unit, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer);

/// All units' parts of a role, end to end, in the role's type.
at::Tensor pack(std::size_t role, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer);
/// An uninitialised tensor of the same size and type.
at::Tensor room_for(std::size_t role, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer);
/// The way back.
void unpack(const at::Tensor& packed, std::size_t role, fsdp::ShardedModel& shards, optim::Optimizer& optimizer);

/// XXH3-128 as 32 hexadecimal digits.
std::string hash_of(const at::Tensor& tensor);

}  // namespace shardtune::checkpoint
