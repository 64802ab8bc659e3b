#pragma once
#include "shardtune/train/run.h"

namespace shardtune::train {

/// Gives new adapters what they take from the base's weights, once these are loaded: DoRA's magnitudes. Nothing for an adapter
/// that comes from a folder. Collective.
void start_adapters(Run& run);

}  // namespace shardtune::train
