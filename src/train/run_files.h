#pragma once
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace shardtune::train {

/// Whether a run writes a file or folder of this name into its output folder, whatever it trains.
bool is_run_name(std::string_view name);

/// The first file in FOLDER that a run (of adapters, or of the full model) would write over though no run of this program left
/// it; nothing when there is none.
std::optional<std::filesystem::path> file_in_the_way(const std::filesystem::path& folder, bool lora);

/// What an earlier run left in FOLDER: complete checkpoints, and the files that run_options.json tells to be a run's, itself
/// last. Empty for a folder that holds no run. A failed start leaves metrics.jsonl alone, which is no run.
std::vector<std::filesystem::path> old_run(const std::filesystem::path& folder);

/// Removes old_run() and the hidden folders of checkpoints that were never finished, and nothing else. Error(kBadStorage).
void remove_run(const std::filesystem::path& folder);

}  // namespace shardtune::train
