#pragma once
#include <filesystem>

#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// Makes OUTPUT_DIR ready on rank 0: proves that it is writable; refuses a folder that already holds a run unless it is resumed
/// or --overwrite_output_dir is given, which removes the old run's files (and nothing else) first.
void prepare_output_folder(const options::RunOptions& options);

/// The checkpoint that --resume_from_checkpoint means; empty when not asked for. Error(kBadCheckpoint) when there is none.
std::filesystem::path resolve_resume(const options::RunOptions& options);

}  // namespace shardtune::train
