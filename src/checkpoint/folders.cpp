#include <fmt/format.h>

#include <algorithm>

#include "manifest.h"

namespace shardtune::checkpoint {
namespace {

struct Found {
  std::int64_t step = 0;
  std::filesystem::path folder;
  bool complete = false;
};

/// A folder with files of ranks and nothing else: what a copy that was cut short leaves.
bool is_rest(const std::filesystem::path& path) {
  if (std::filesystem::symlink_status(path).type() != std::filesystem::file_type::directory) return false;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".h5")) return false;
  }
  return true;
}

/// What is named checkpoint-DIGITS, by step.
std::vector<Found> checkpoint_folders(const std::filesystem::path& output_dir) {
  std::vector<Found> found;
  if (!std::filesystem::is_directory(output_dir)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(output_dir)) {
    const std::string name = entry.path().filename().string();
    if (!is_checkpoint_name(name)) continue;
    found.push_back({step_of(entry.path()), entry.path(), std::filesystem::exists(entry.path() / kManifest)});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  return found;
}

}  // namespace

bool is_checkpoint_name(std::string_view name) {
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return !name.empty() && name.size() <= 15 &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<std::filesystem::path> foreign_checkpoint(const std::filesystem::path& output_dir) {
  for (const Found& found : checkpoint_folders(output_dir))
    if (!found.complete && !is_rest(found.folder)) return found.folder;
  return std::nullopt;
}

std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& output_dir) {
  std::vector<std::filesystem::path> complete;
  for (const Found& found : checkpoint_folders(output_dir))
    if (found.complete) complete.push_back(found.folder);
  return complete;
}

std::optional<std::filesystem::path> newest(const std::filesystem::path& output_dir) {
  const auto complete = complete_checkpoints(output_dir);
  if (complete.empty()) return std::nullopt;
  return complete.back();
}

std::vector<std::filesystem::path> set_incomplete_aside(const std::filesystem::path& output_dir) {
  std::vector<std::filesystem::path> moved;
  for (const Found& found : checkpoint_folders(output_dir)) {
    if (found.complete || !is_rest(found.folder)) continue;
    std::filesystem::path to = output_dir / ("incomplete-" + found.folder.filename().string());
    for (int n = 2; std::filesystem::exists(to); ++n)
      to = output_dir / fmt::format("incomplete-{}.{}", found.folder.filename().string(), n);
    std::filesystem::rename(found.folder, to);
    moved.push_back(to);
  }
  return moved;
}

std::int64_t step_of(const std::filesystem::path& folder) {
  return std::stoll(folder.filename().string().substr(std::string_view("checkpoint-").size()));
}

void prune(const std::filesystem::path& output_dir, std::int64_t keep) {
  const auto complete = complete_checkpoints(output_dir);
  if (keep <= 0) return;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < complete.size(); ++i)
    std::filesystem::remove_all(complete[i]);
}

}  // namespace shardtune::checkpoint
