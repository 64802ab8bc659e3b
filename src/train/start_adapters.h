#pragma once
#include <functional>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Gives new adapters what they take from the base's weights, once these are loaded: DoRA's magnitudes. Nothing for an adapter
/// that comes from a folder. Collective.
void start_adapters(Run& run);

/// Gives one new adapter, which takes part, what it takes from the base's weights; its shards are those of `shard`. Collective.
using ShardOf = std::function<fsdp::FlatShard&(std::size_t unit)>;
void start_adapter(Run& run, const adapters::LoraConfig& adapter, const ShardOf& shard);

}  // namespace shardtune::train
