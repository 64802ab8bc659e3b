#pragma once
#include <filesystem>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Fingerprint of the model's files, read once a run. Collective.
const std::string& base_fingerprint(Run& run);

/// An adapter folder that tells of its base (shardtune_base.json) goes with that base alone: Error(kBadModel) for another. One that
/// was trained over another form of it (quantised or not, another type) is taken, and rank 0 says so. Collective.
void check_base_of(Run& run, const std::filesystem::path& adapter);

}  // namespace shardtune::train
