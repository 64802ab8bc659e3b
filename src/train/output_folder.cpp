#include "output_folder.h"

#include <vector>

#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"

namespace shardtune::train {
namespace {

/// What a run leaves in its folder. metrics.jsonl alone is the note of a start that failed before it trained (a wrong path, say):
/// the corrected command may use the folder.
std::vector<std::filesystem::path> run_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  for (const char* name :
       {"metrics.jsonl", "run_options.json", "adapter_model.safetensors", "adapter_config.json", "model.safetensors"})
    if (std::filesystem::exists(folder / name)) found.push_back(folder / name);
  if (!std::filesystem::is_directory(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_directory() && entry.path().filename().string().starts_with("checkpoint-"))
      found.push_back(entry.path());
  if (found.size() == 1 && found.front().filename() == "metrics.jsonl") found.clear();
  return found;
}

/// Writing over, or clearing, what the run reads from would destroy what it starts from. Inputs may not be the folder, nor lie in one
/// of its checkpoint-* folders, which an overwriting run removes.
void refuse_input(const std::filesystem::path& folder, const std::string& input, const char* option) {
  if (input.empty() || !std::filesystem::exists(input)) return;
  const std::filesystem::path output = std::filesystem::weakly_canonical(folder);
  std::filesystem::path place = std::filesystem::canonical(input);
  if (place == output)
    fail(ErrorClass::kUsage, "--output_dir '{}' is the folder of {}; give another folder", folder.string(), option);
  for (; place.has_relative_path(); place = place.parent_path())
    if (place.parent_path() == output && place.filename().string().starts_with("checkpoint-"))
      fail(ErrorClass::kUsage, "{} '{}' lies in a checkpoint-* folder of --output_dir '{}'; give another output folder",
           option, input, folder.string());
}

}  // namespace

bool prepare_output_folder(const options::RunOptions& options) {
  const std::filesystem::path folder = options.train.output_dir;
  refuse_input(folder, options.model.model_name_or_path, "--model_name_or_path");
  refuse_input(folder, options.adapter.adapter_name_or_path, "--adapter_name_or_path");
  refuse_input(folder, options.data.dataset_name, "--dataset_name");
  io::ensure_writable_folder(folder);
  const auto found = run_files(folder);
  if (found.empty() || !options.train.resume_from_checkpoint.empty()) return false;
  if (!options.train.overwrite_output_dir)
    fail(ErrorClass::kBadStorage,
         "--output_dir '{}' already holds a run ({}); give another folder, --resume_from_checkpoint to go on with it, "
         "or --overwrite_output_dir to replace it",
         folder.string(), found.front().filename().string());
  return true;
}

void remove_old_run(const options::RunOptions& options) {
  for (const auto& path : run_files(options.train.output_dir)) std::filesystem::remove_all(path);
}

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
