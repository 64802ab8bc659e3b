#include "run_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/core/error.h"
#include "shardtune/export/base_record.h"
#include "shardtune/export/carried_files.h"
#include "shardtune/io/files.h"

namespace shardtune::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A run is known by this file, which it writes before it trains.
constexpr std::string_view kMark = "run_options.json";
constexpr std::string_view kMetrics = "metrics.jsonl";
constexpr std::uintmax_t kMaxMarkBytes = 1 << 20;

/// Every file that a run writes, the mark last: a removal that breaks off leaves a folder that is still known as a run's.
std::vector<std::string_view> written_names(bool lora) {
  using exporting::ResultKind;
  std::vector<std::string_view> names = {kMetrics, "README.md"};
  if (lora)
    names.insert(names.end(), {"adapter_model.safetensors", "adapter_config.json", exporting::BaseRecord::kFileName});
  else names.insert(names.end(), {"model.safetensors", "config.json"});
  const auto& carried = exporting::carried_files(lora ? ResultKind::kAdapter : ResultKind::kFullModel);
  names.insert(names.end(), carried.begin(), carried.end());
  names.push_back(kMark);
  return names;
}

bool contains(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Links count as what they are: no run makes one.
fs::file_type type_of(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type();
}
bool is_file(const fs::path& path) { return type_of(path) == fs::file_type::regular; }

/// Whether a run left its mark in the folder, and then whether it trained adapters.
std::optional<bool> marked_lora(const fs::path& folder) {
  const fs::path mark = folder / kMark;
  if (!is_file(mark) || fs::file_size(mark) > kMaxMarkBytes) return std::nullopt;
  const json options =
      json::parse(io::read_text_file(mark, ErrorClass::kBadStorage), nullptr, /*allow_exceptions=*/false);
  for (const char* entry : {"/output_dir/value", "/output_dir/source", "/use_peft_lora/value"})
    if (const json::json_pointer at(entry); !options.contains(at) || !options.at(at).is_string()) return std::nullopt;
  return options.at(json::json_pointer("/use_peft_lora/value")) == "True";
}

/// A start that fails before it trains (a wrong path, say) leaves nothing but a line about it.
bool tells_of_failed_starts_only(const fs::path& metrics) {
  if (fs::file_size(metrics) > kMaxMarkBytes) return false;
  std::istringstream lines(io::read_text_file(metrics, ErrorClass::kBadStorage));
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || record.size() != 2 || !record.contains("error_class") || !record.contains("error"))
      return false;
  }
  return true;
}

/// As io::AtomicFolder names a checkpoint that is not finished.
bool is_unfinished_checkpoint(const fs::path& path) {
  static const std::regex name(R"(\.tmp-checkpoint-[0-9]{1,15}\.[0-9]+\.[0-9]+\.[0-9a-f]{8})");
  return std::regex_match(path.filename().string(), name) && type_of(path) == fs::file_type::directory;
}

}  // namespace

bool is_run_name(std::string_view name) {
  return name.starts_with("checkpoint-") || contains(written_names(true), name) || contains(written_names(false), name);
}

std::optional<fs::path> file_in_the_way(const fs::path& folder, bool lora) {
  const std::optional<bool> old_lora = marked_lora(folder);
  const auto old_names = old_lora ? written_names(*old_lora) : std::vector<std::string_view>();
  for (const std::string_view name : written_names(lora)) {
    const fs::path path = folder / name;
    if (type_of(path) == fs::file_type::not_found) continue;
    const bool ours =
        is_file(path) && (contains(old_names, name) || (name == kMetrics && tells_of_failed_starts_only(path)));
    if (!ours) return path;
  }
  return std::nullopt;
}

std::vector<fs::path> old_run(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& checkpoint : checkpoint::complete_checkpoints(folder))
    if (is_file(checkpoint / "manifest.json")) found.push_back(checkpoint);
  if (const std::optional<bool> lora = marked_lora(folder))
    for (const std::string_view name : written_names(*lora))
      if (is_file(folder / name)) found.push_back(folder / name);
  return found;
}

void remove_run(const fs::path& folder) {
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_unfinished_checkpoint(entry.path())) doomed.push_back(entry.path());
  for (fs::path& path : old_run(folder)) doomed.push_back(std::move(path));
  for (const fs::path& path : doomed) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error)
      fail(ErrorClass::kBadStorage, "--overwrite_output_dir: cannot remove '{}' of the old run: {}", path.string(),
           error.message());
  }
}

}  // namespace shardtune::train
