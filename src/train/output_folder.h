#pragma once
#include <filesystem>
#include <optional>

#include "shardtune/io/files.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// Proves on rank 0 that OUTPUT_DIR is writable and that the run will write over nothing but what it may: refuses a folder with
/// files of the run's names that no run left, and one that already holds a run unless that is resumed or --overwrite_output_dir
/// is given. Returns whether an old run is there that the new one replaces.
/// `lock`, when given, holds the folder from before the first look.
bool prepare_output_folder(const options::RunOptions& options, std::optional<io::FolderLock>* lock = nullptr);

/// Removes the files of the run that --overwrite_output_dir replaces, and nothing else. Called when the new run is built: a new
/// run that is refused leaves the old one alone.
void remove_old_run(const options::RunOptions& options);

/// The checkpoint that --resume_from_checkpoint means; empty when not asked for. Error(kBadCheckpoint) when there is none.
std::filesystem::path resolve_resume(const options::RunOptions& options);

}  // namespace shardtune::train
