#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/fsdp/sharded_model.h"

namespace shardtune::optim {

/// What this rank holds of one trained tensor: `count` elements from element `at` of the unit's shard on.
struct Part {
  const model::Parameter* parameter = nullptr;
  std::int64_t at = 0, count = 0;
};

/// In the order of the shard.
std::vector<Part> parts_of(fsdp::ShardedModel& model, std::size_t unit);

}  // namespace shardtune::optim
