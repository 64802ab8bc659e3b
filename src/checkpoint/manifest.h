#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "packed_state.h"
#include "shardtune/checkpoint/checkpoint.h"

namespace shardtune::checkpoint {

constexpr const char* kManifest = "manifest.json";

/// XXH3-128 texts of one rank's roles, of fixed size so that they can be gathered.
using Hashes = std::array<std::array<char, 33>, kRoles.size()>;

/// What manifest.json says of a checkpoint that fits this run.
struct Manifest {
  RunState state;  ///< `fixed` is empty: it was compared
  std::vector<std::array<std::string, kRoles.size()>> hashes;  ///< by rank
};

/// The text of manifest.json; `hashes` by rank.
std::string manifest_text(const RunState& state, fsdp::ShardedModel& shards, const std::vector<Hashes>& hashes);

/// Reads manifest.json and compares it with the run that wants to go on; the first difference is the message.
/// Error(kBadCheckpoint). No communication.
Manifest read_manifest(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
                       int ranks);

/// Error(kBadCheckpoint) that names the folder.
[[noreturn]] void bad_checkpoint(const std::filesystem::path& folder, const std::string& reason);

}  // namespace shardtune::checkpoint
