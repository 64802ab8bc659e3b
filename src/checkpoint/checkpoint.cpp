#include "shardtune/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "manifest.h"
#include "packed_state.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/memory_reserve.h"
#include "shardtune/core/ops.h"
#include "shardtune/io/files.h"
#include "shardtune/io/hdf5.h"

namespace shardtune::checkpoint {
namespace {

/// HDF5 1.10 does not look whether it got the memory for an open file (about 1 MiB) and crashes where it did not.
constexpr std::size_t kHdf5FileBytes = 4 << 20;

std::filesystem::path rank_file(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{:05}.h5", rank);
}

Hashes write_rank_file(const std::filesystem::path& path, const RunState& state, fsdp::ShardedModel& shards,
                       optim::AdamW& optimizer, comm::Communicator& communicator) {
  Hashes hashes{};
  require_memory(kHdf5FileBytes);
  io::Hdf5File file = io::Hdf5File::create(path);
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    const at::Tensor packed = pack(role, shards, optimizer);
    file.write(fmt::format("state/{}", kRoles[role]), Dtype::kF32, static_cast<std::uint64_t>(packed.numel()),
               ops::bytes_of(packed));
    const std::string hash = hash_of(packed);
    std::copy(hash.begin(), hash.end(), hashes[role].begin());
  }
  file.write_attribute("state", "step", state.step);
  file.write_attribute("state", "rank", static_cast<std::int64_t>(communicator.rank()));
  file.write_attribute("state", "world_size", static_cast<std::int64_t>(communicator.size()));
  file.close();
  return hashes;
}

std::vector<at::Tensor> read_rank_file(const std::filesystem::path& folder, const Manifest& manifest,
                                       fsdp::ShardedModel& shards, int rank) {
  require_memory(kHdf5FileBytes);
  const io::Hdf5File file = io::Hdf5File::open(rank_file(folder, rank));
  if (file.read_int_attribute("state", "rank") != rank ||
      file.read_int_attribute("state", "step") != manifest.state.step)
    bad_checkpoint(folder, fmt::format("rank-{:05}.h5 belongs to another rank or step", rank));
  std::vector<at::Tensor> roles;
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    const std::string name = fmt::format("state/{}", kRoles[role]);
    at::Tensor packed = at::empty({packed_elements(shards)}, at::kFloat);
    const auto info = file.info(name);
    if (info.dtype != Dtype::kF32 || static_cast<std::int64_t>(info.elements) != packed.numel())
      bad_checkpoint(folder, fmt::format("rank-{:05}.h5: '{}' holds {} elements, expected {}", rank, name,
                                         info.elements, packed.numel()));
    file.read(name, 0, info.elements, ops::bytes_of(packed));
    if (hash_of(packed) != manifest.hashes[static_cast<std::size_t>(rank)][role])
      bad_checkpoint(folder,
                     fmt::format("rank-{:05}.h5: '{}' is damaged (its hash differs from the manifest's)", rank, name));
    roles.push_back(std::move(packed));
  }
  return roles;
}

Manifest open_checkpoint(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
                         int ranks) {
  if (!std::filesystem::is_directory(folder)) bad_checkpoint(folder, "no such folder");
  if (!std::filesystem::exists(folder / kManifest))
    bad_checkpoint(folder, "holds no manifest.json: not a complete checkpoint");
  return read_manifest(folder, expected, shards, ranks);
}

}  // namespace

RunState check(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
               comm::Communicator& communicator) {
  RunState state;
  comm::agree(communicator, [&] { state = open_checkpoint(folder, expected, shards, communicator.size()).state; });
  return state;
}

std::filesystem::path save(const std::filesystem::path& output_dir, const RunState& state, fsdp::ShardedModel& shards,
                           optim::AdamW& optimizer, comm::Communicator& communicator) {
  const std::filesystem::path target = output_dir / fmt::format("checkpoint-{}", state.step);
  std::optional<io::AtomicFolder> folder;
  comm::agree_on_root(communicator, [&] { folder.emplace(target); });
  const std::filesystem::path temporary = communicator.broadcast_text(folder ? folder->path().string() : "", 0);
  Hashes hashes{};
  comm::agree(communicator, [&] {
    hashes = write_rank_file(rank_file(temporary, communicator.rank()), state, shards, optimizer, communicator);
  });
  const std::vector<Hashes> all = communicator.gather_values(hashes);
  comm::agree_on_root(communicator, [&] {
    io::write_file_atomic(temporary / kManifest, manifest_text(state, shards, all));
    folder->publish();
  });
  return target;
}

RunState load(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
              optim::AdamW& optimizer, comm::Communicator& communicator) {
  Manifest manifest;
  std::vector<at::Tensor> roles;
  comm::agree(communicator, [&] {
    manifest = open_checkpoint(folder, expected, shards, communicator.size());
    roles = read_rank_file(folder, manifest, shards, communicator.rank());
  });
  for (std::size_t role = 0; role < kRoles.size(); ++role) unpack(roles[role], role, shards, optimizer);
  optimizer.set_steps_taken(manifest.state.optimizer_steps);
  manifest.state.fixed = expected.fixed;
  return manifest.state;
}

}  // namespace shardtune::checkpoint
