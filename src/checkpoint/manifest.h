#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "packed_state.h"
#include "shardtune/checkpoint/checkpoint.h"

namespace shardtune::checkpoint {

constexpr const char* kManifest = "manifest.json";

/// XXH3-128 texts of one rank's roles, in their order.
using Hashes = std::vector<std::string>;

/// What manifest.json says of a checkpoint that fits this run.
struct Manifest {
  RunState state;  ///< `fixed` is empty: it was compared
  std::vector<Hashes> hashes;  ///< by rank
};

/// The text of manifest.json; `hashes` by rank.
std::string manifest_text(const RunState& state, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer,
                          const std::vector<Hashes>& hashes);

/// Reads manifest.json and compares it with the run that wants to go on; the first difference is the message.
/// Error(kBadCheckpoint). No communication.
Manifest read_manifest(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
                       const optim::Optimizer& optimizer, int ranks);

/// Error(kBadCheckpoint) that names the folder.
[[noreturn]] void bad_checkpoint(const std::filesystem::path& folder, const std::string& reason);

}  // namespace shardtune::checkpoint
