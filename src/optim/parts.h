#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/optim/options.h"

namespace shardtune::optim {

/// What this rank holds of one trained tensor: `count` elements from element `at` of the unit's shard on.
struct Part {
  const model::Parameter* parameter = nullptr;
  std::int64_t at = 0, count = 0;
};

/// In the order of the shard.
std::vector<Part> parts_of(fsdp::ShardedModel& model, std::size_t unit);

struct Rates {
  double learning_rate = 0, weight_decay = 0;
};

/// What holds for a parameter in a step whose learning rate is `learning_rate`. With LoRA+ (options.loraplus_lr_ratio above 0) the
/// schedule scales the rate of every group alike: B matrices and whatever has one dimension, the embedding's A and B, and the
/// rest. Weight decay then applies to norms and magnitudes as well. Source: PEFT 0.21, create_loraplus_optimizer.
Rates rates_of(const OptimOptions& options, const model::Parameter& parameter, double learning_rate);

}  // namespace shardtune::optim
