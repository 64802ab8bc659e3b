#pragma once
#include <functional>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Enters the second, frozen adapter of a run whose adapter starts from the base (adapters/start.h) into model and shards, which
/// must be new. It takes part from now on. No communication.
void enter_frozen_start(Run& run);

/// Gives new adapters what they take from the base's weights, once these are loaded: DoRA's magnitudes, factors of the weights.
/// Nothing for an adapter that comes from a folder. Collective.
void start_adapters(Run& run);

/// Gives one new adapter, which takes part, what it takes from the base's weights; its shards are those of `shard`. Collective.
using ShardOf = std::function<fsdp::FlatShard&(std::size_t unit)>;
void start_adapter(Run& run, const adapters::LoraConfig& adapter, const ShardOf& shard);

}  // namespace shardtune::train
