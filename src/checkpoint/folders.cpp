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

/// Folders named checkpoint-DIGITS, by step.
std::vector<Found> checkpoint_folders(const std::filesystem::path& output_dir) {
  std::vector<Found> found;
  if (!std::filesystem::is_directory(output_dir)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(output_dir)) {
    const std::string name = entry.path().filename().string();
    const std::string digits = name.starts_with("checkpoint-") ? name.substr(11) : "";
    if (digits.empty() || digits.size() > 15 ||
        !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
      continue;
    found.push_back({std::stoll(digits), entry.path(), std::filesystem::exists(entry.path() / kManifest)});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  return found;
}

}  // namespace

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
    if (found.complete) continue;
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
