#pragma once
#include <filesystem>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Refuses a checkpoint that this run cannot go on from, from its manifest.json alone: another run's, a damaged one, one that
/// leaves nothing to train, or one that is older than what --output_dir holds (unless this run `replaces` that). For the
/// moment before the weights are read, which may take minutes. AgreedError. Collective.
void check_resume(Run& run, const std::filesystem::path& folder, bool replaces);

}  // namespace shardtune::train
