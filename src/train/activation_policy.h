#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Which layers keep their intermediates from forward to backward (true) instead of computing them again, by layer. From
/// --activation_policy, or from --gradient_checkpointing where that was given, or else `auto`. Error(kUsage) for a
/// contradiction and for a budget that is too small; the message says what the least is. Collective: all ranks take the same
/// decision.
std::vector<bool> choose_kept_layers(const Run& run, const std::set<std::string>& explicitly_set);

/// Layers that keep one input together: N of --activation_policy inputs_every_N, else 1.
std::int64_t input_block(const model::ModelOptions& options);

/// Bytes that a layer keeps for one token beyond its input.
std::int64_t kept_bytes_per_token(const model::ModelConfig& config, at::ScalarType compute_type);

}  // namespace shardtune::train
