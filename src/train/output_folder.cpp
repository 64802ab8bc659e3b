#include "output_folder.h"

#include <vector>

#include "run_files.h"
#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"

namespace shardtune::train {
namespace {

/// A path that cannot even be looked at: a loop of links, a name that is too long, no rights on the way. One that is missing
/// passes; whoever opens it says so.
void refuse_unreachable(const std::string& path, const char* option, ErrorClass error_class) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && error)
    fail(error_class, "{} '{}' cannot be reached: {}", option, path, error.message());
}

/// Writing over, or clearing, what the run reads from would destroy what it starts from: inputs may not be the folder, nor lie
/// in it under a name that runs write or replace. Others may: a data set beside the results, say.
void refuse_input(const std::filesystem::path& folder, const std::string& input, const char* option) {
  if (input.empty() || !std::filesystem::exists(input)) return;
  const std::filesystem::path output = std::filesystem::weakly_canonical(folder);
  std::filesystem::path place = std::filesystem::canonical(input);
  if (place == output)
    fail(ErrorClass::kUsage, "--output_dir '{}' is the folder of {}; give another folder", folder.string(), option);
  for (; place.has_relative_path(); place = place.parent_path())
    if (const std::string name = place.filename().string(); place.parent_path() == output && is_run_name(name))
      fail(ErrorClass::kUsage,
           "{} '{}' lies in --output_dir '{}' under the name '{}', which runs write and replace; give another output "
           "folder",
           option, input, folder.string(), name);
}

void check_paths(const options::RunOptions& options) {
  const std::string& folder = options.train.output_dir;
  refuse_unreachable(folder, "--output_dir", ErrorClass::kBadStorage);
  refuse_unreachable(options.model.model_name_or_path, "--model_name_or_path", ErrorClass::kBadModel);
  refuse_unreachable(options.adapter.adapter_name_or_path, "--adapter_name_or_path", ErrorClass::kBadModel);
  refuse_unreachable(options.data.dataset_name, "--dataset_name", ErrorClass::kBadData);
  refuse_unreachable(options.train.resume_from_checkpoint, "--resume_from_checkpoint", ErrorClass::kBadCheckpoint);
  refuse_input(folder, options.model.model_name_or_path, "--model_name_or_path");
  refuse_input(folder, options.adapter.adapter_name_or_path, "--adapter_name_or_path");
  refuse_input(folder, options.data.dataset_name, "--dataset_name");
}

/// Whether the run goes on from a checkpoint of the very folder it writes into.
bool resumes_in_place(const TrainOptions& options) {
  const std::string& wish = options.resume_from_checkpoint;
  if (wish.empty() || wish == "true") return !wish.empty();
  std::filesystem::path place = std::filesystem::weakly_canonical(wish);
  if (!place.has_filename()) place = place.parent_path();  // what is not there keeps its trailing slash
  return place.parent_path() == std::filesystem::canonical(options.output_dir);
}

/// `saves`: checkpoints are written, so that their names must be free.
void refuse_foreign_files(const std::filesystem::path& folder, bool lora, bool saves) {
  auto path = file_in_the_way(folder, lora);
  if (!path && saves) path = checkpoint::foreign_checkpoint(folder);
  if (path)
    fail(ErrorClass::kBadStorage,
         "--output_dir '{}' holds '{}', which this run would write over and which no run of this program is known to "
         "have left; move that file away, or give another folder",
         folder.string(), path->filename().string());
}

}  // namespace

bool prepare_output_folder(const options::RunOptions& options, std::optional<io::FolderLock>* lock) {
  const std::filesystem::path folder = options.train.output_dir;
  check_paths(options);
  io::ensure_writable_folder(folder);
  if (lock != nullptr) lock->emplace(folder);
  refuse_foreign_files(folder, options.adapter.use_peft_lora, options.train.save_strategy != "no");
  const auto found = old_run(folder);
  if (found.empty()) return false;
  const bool overwrite = options.train.overwrite_output_dir;
  if (resumes_in_place(options.train)) {
    if (!overwrite) return false;
    fail(ErrorClass::kUsage,
         "--resume_from_checkpoint '{}' lies in --output_dir, which --overwrite_output_dir clears; remove one of the "
         "two options",
         options.train.resume_from_checkpoint);
  }
  if (overwrite) return true;
  fail(ErrorClass::kBadStorage,
       "--output_dir '{}' already holds a run ({}); give another folder, --resume_from_checkpoint to go on from one of "
       "its own checkpoints, or --overwrite_output_dir to replace it",
       folder.string(), found.back().filename().string());
}

void remove_old_run(const options::RunOptions& options) { remove_run(options.train.output_dir); }

std::filesystem::path resolve_resume(const options::RunOptions& options) {
  const std::string& wish = options.train.resume_from_checkpoint;
  if (wish.empty()) return {};
  if (wish != "true") return wish;
  const auto newest = checkpoint::newest(options.train.output_dir);
  if (!newest)
    fail(ErrorClass::kBadCheckpoint, "--resume_from_checkpoint: no complete checkpoint-* folder in '{}'",
         options.train.output_dir);
  return *newest;
}

}  // namespace shardtune::train
