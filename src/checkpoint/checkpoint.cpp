#include "shardtune/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

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
                       const optim::Optimizer& optimizer, comm::Communicator& communicator) {
  Hashes hashes;
  const std::vector<optim::StateRole> roles = roles_of(shards, optimizer);
  require_memory(kHdf5FileBytes);
  io::Hdf5File file = io::Hdf5File::create(path);
  for (std::size_t role = 0; role < roles.size(); ++role) {
    const at::Tensor packed = pack(role, shards, optimizer);
    file.write("state/" + roles[role].name, roles[role].dtype, static_cast<std::uint64_t>(packed.numel()),
               ops::bytes_of(packed));
    hashes.push_back(hash_of(packed));
  }
  file.write_attribute("state", "step", state.step);
  file.write_attribute("state", "rank", static_cast<std::int64_t>(communicator.rank()));
  file.write_attribute("state", "world_size", static_cast<std::int64_t>(communicator.size()));
  file.close();
  return hashes;
}

std::vector<at::Tensor> read_rank_file(const std::filesystem::path& folder, const Manifest& manifest,
                                       fsdp::ShardedModel& shards, const optim::Optimizer& optimizer, int rank) {
  require_memory(kHdf5FileBytes);
  const io::Hdf5File file = io::Hdf5File::open(rank_file(folder, rank));
  if (file.read_int_attribute("state", "rank") != rank ||
      file.read_int_attribute("state", "step") != manifest.state.step)
    bad_checkpoint(folder, fmt::format("rank-{:05}.h5 belongs to another rank or step", rank));
  const std::vector<optim::StateRole> roles = roles_of(shards, optimizer);
  std::vector<at::Tensor> all;
  for (std::size_t role = 0; role < roles.size(); ++role) {
    const std::string name = "state/" + roles[role].name;
    at::Tensor packed = room_for(role, shards, optimizer);
    const auto info = file.info(name);
    if (info.dtype != roles[role].dtype || static_cast<std::int64_t>(info.elements) != packed.numel())
      bad_checkpoint(folder,
                     fmt::format("rank-{:05}.h5: '{}' holds {} elements in {}, expected {} in {}", rank, name,
                                 info.elements, dtype_name(info.dtype), packed.numel(), dtype_name(roles[role].dtype)));
    file.read(name, 0, info.elements, ops::bytes_of(packed));
    if (hash_of(packed) != manifest.hashes[static_cast<std::size_t>(rank)][role])
      bad_checkpoint(folder,
                     fmt::format("rank-{:05}.h5: '{}' is damaged (its hash differs from the manifest's)", rank, name));
    all.push_back(std::move(packed));
  }
  return all;
}

/// By rank. Collective.
std::vector<Hashes> gather_hashes(const Hashes& mine, comm::Communicator& communicator) {
  std::vector<Hashes> all(static_cast<std::size_t>(communicator.size()));
  for (const std::string& hash : mine) {
    std::array<char, 32> text{};
    std::ranges::copy(hash, text.begin());
    const auto of_ranks = communicator.gather_values(text);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      all[rank].emplace_back(of_ranks[rank].data(), of_ranks[rank].size());
  }
  return all;
}

Manifest open_checkpoint(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
                         const optim::Optimizer& optimizer, int ranks) {
  if (!std::filesystem::is_directory(folder)) bad_checkpoint(folder, "no such folder");
  if (!std::filesystem::exists(folder / kManifest))
    bad_checkpoint(folder, "holds no manifest.json: not a complete checkpoint");
  return read_manifest(folder, expected, shards, optimizer, ranks);
}

}  // namespace

RunState check(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
               const optim::Optimizer& optimizer, comm::Communicator& communicator) {
  RunState state;
  comm::agree(communicator,
              [&] { state = open_checkpoint(folder, expected, shards, optimizer, communicator.size()).state; });
  return state;
}

std::filesystem::path save(const std::filesystem::path& output_dir, const RunState& state, fsdp::ShardedModel& shards,
                           const optim::Optimizer& optimizer, comm::Communicator& communicator) {
  const std::filesystem::path target = output_dir / fmt::format("checkpoint-{}", state.step);
  std::optional<io::AtomicFolder> folder;
  comm::agree_on_root(communicator, [&] { folder.emplace(target); });
  const std::filesystem::path temporary = communicator.broadcast_text(folder ? folder->path().string() : "", 0);
  Hashes hashes;
  comm::agree(communicator, [&] {
    hashes = write_rank_file(rank_file(temporary, communicator.rank()), state, shards, optimizer, communicator);
  });
  const std::vector<Hashes> all = gather_hashes(hashes, communicator);
  comm::agree_on_root(communicator, [&] {
    io::write_file_atomic(temporary / kManifest, manifest_text(state, shards, optimizer, all));
    folder->publish();
  });
  return target;
}

RunState load(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
              optim::Optimizer& optimizer, comm::Communicator& communicator) {
  Manifest manifest;
  std::vector<at::Tensor> roles;
  comm::agree(communicator, [&] {
    manifest = open_checkpoint(folder, expected, shards, optimizer, communicator.size());
    roles = read_rank_file(folder, manifest, shards, optimizer, communicator.rank());
  });
  for (std::size_t role = 0; role < roles.size(); ++role) unpack(roles[role], role, shards, optimizer);
  optimizer.set_steps_taken(manifest.state.optimizer_steps);
  manifest.state.fixed = expected.fixed;
  return manifest.state;
}

}  // namespace shardtune::checkpoint
