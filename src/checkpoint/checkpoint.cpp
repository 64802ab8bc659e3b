#include "shardtune/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "packed_state.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/memory_reserve.h"
#include "shardtune/io/files.h"
#include "shardtune/io/hdf5.h"
#include "shardtune/io/json.h"

namespace shardtune::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr const char* kManifest = "manifest.json";
constexpr std::int64_t kSchema = 1;

/// HDF5 1.10 does not look whether it got the memory for an open file (about 1 MiB) and crashes where it did not.
constexpr std::size_t kHdf5FileBytes = 4 << 20;

std::filesystem::path rank_file(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{:05}.h5", rank);
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

/// Hash texts of one rank, of fixed size so that they can be gathered.
using Hashes = std::array<std::array<char, 33>, kRoles.size()>;

Hashes write_rank_file(const std::filesystem::path& path, const RunState& state, fsdp::ShardedModel& shards,
                       optim::AdamW& optimizer, comm::Communicator& communicator) {
  Hashes hashes{};
  require_memory(kHdf5FileBytes);
  io::Hdf5File file = io::Hdf5File::create(path);
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    const at::Tensor packed = pack(role, shards, optimizer);
    file.write(fmt::format("state/{}", kRoles[role]), Dtype::kF32, static_cast<std::uint64_t>(packed.numel()),
               bytes_of(packed));
    const std::string hash = hash_of(packed);
    std::copy(hash.begin(), hash.end(), hashes[role].begin());
  }
  file.write_attribute("state", "step", state.step);
  file.write_attribute("state", "rank", static_cast<std::int64_t>(communicator.rank()));
  file.write_attribute("state", "world_size", static_cast<std::int64_t>(communicator.size()));
  file.close();
  return hashes;
}

ordered_json parameters_json(fsdp::ShardedModel& shards) {
  ordered_json list = ordered_json::array();
  for (std::size_t unit = 0; unit < shards.units(); ++unit)
    for (const model::Parameter& parameter : shards.spec(unit).parameters)
      if (parameter.trainable && !parameter.borrowed)
        list.push_back({{"name", parameter.name}, {"shape", parameter.shape}, {"unit", unit}});
  return list;
}

ordered_json manifest_json(const RunState& state, fsdp::ShardedModel& shards, const std::vector<Hashes>& hashes) {
  ordered_json fixed = ordered_json::object();
  for (const auto& [name, value] : state.fixed) fixed[name] = value;
  ordered_json ranks = ordered_json::array();
  for (const Hashes& rank : hashes) {
    ordered_json entry = ordered_json::object();
    for (std::size_t role = 0; role < kRoles.size(); ++role) entry[kRoles[role]] = std::string(rank[role].data());
    ranks.push_back(entry);
  }
  return {{"schema", kSchema},
          {"step", state.step},
          {"epoch", state.position.epoch},
          {"step_in_epoch", state.position.step_in_epoch},
          {"num_tokens", state.num_tokens},
          {"loss_sum", state.loss_sum},
          {"world_size", hashes.size()},
          {"fixed", fixed},
          {"parameters", parameters_json(shards)},
          {"xxh3_128", ranks}};
}

[[noreturn]] void bad(const std::filesystem::path& folder, const std::string& reason) {
  fail(ErrorClass::kBadCheckpoint, "{}: {}", folder.string(), reason);
}

/// Compares the manifest with the run that wants to continue; the first difference is the message.
void check_manifest(const nlohmann::json& manifest, const std::filesystem::path& folder, const RunState& expected,
                    fsdp::ShardedModel& shards, int ranks) {
  if (!manifest.is_object() || manifest.value("schema", 0) != kSchema)
    bad(folder, "manifest.json has an unknown schema");
  const int written = manifest.at("world_size").get<int>();
  if (written != ranks)
    bad(folder, fmt::format("written by {} ranks, this run has {}; start the same number of ranks", written, ranks));
  for (const auto& [name, value] : expected.fixed) {
    const std::string stored = manifest.at("fixed").value(name, "(not stored)");
    if (stored != value)
      bad(folder, fmt::format("--{} was {} in the checkpoint's run and is {} now; a resumed run must keep it", name,
                              stored, value));
  }
  const nlohmann::json now = parameters_json(shards);
  const nlohmann::json& then = manifest.at("parameters");
  for (std::size_t i = 0; i < std::max(now.size(), then.size()); ++i) {
    const std::string left = i < then.size() ? then[i].dump() : "nothing",
                      right = i < now.size() ? now[i].dump() : "nothing";
    if (left != right)
      bad(folder, fmt::format("trained parameter {} is {} in the checkpoint and {} in this run", i, left, right));
  }
}

std::vector<at::Tensor> read_rank_file(const std::filesystem::path& folder, const nlohmann::json& manifest,
                                       fsdp::ShardedModel& shards, optim::AdamW& optimizer, int rank) {
  require_memory(kHdf5FileBytes);
  const io::Hdf5File file = io::Hdf5File::open(rank_file(folder, rank));
  if (file.read_int_attribute("state", "rank") != rank ||
      file.read_int_attribute("state", "step") != manifest.at("step").get<std::int64_t>())
    bad(folder, fmt::format("rank-{:05}.h5 belongs to another rank or step", rank));
  std::vector<at::Tensor> roles;
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    const std::string name = fmt::format("state/{}", kRoles[role]);
    at::Tensor packed = at::empty_like(pack(role, shards, optimizer));
    const auto info = file.info(name);
    if (info.dtype != Dtype::kF32 || static_cast<std::int64_t>(info.elements) != packed.numel())
      bad(folder,
          fmt::format("rank-{:05}.h5: '{}' holds {} elements, expected {}", rank, name, info.elements, packed.numel()));
    file.read(name, 0, info.elements, bytes_of(packed));
    const std::string expected =
        manifest.at("xxh3_128").at(static_cast<std::size_t>(rank)).at(kRoles[role]).get<std::string>();
    if (hash_of(packed) != expected)
      bad(folder, fmt::format("rank-{:05}.h5: '{}' is damaged (its hash differs from the manifest's)", rank, name));
    roles.push_back(std::move(packed));
  }
  return roles;
}

}  // namespace

std::filesystem::path save(const std::filesystem::path& output_dir, const RunState& state, fsdp::ShardedModel& shards,
                           optim::AdamW& optimizer, comm::Communicator& communicator) {
  const std::filesystem::path target = output_dir / fmt::format("checkpoint-{}", state.step);
  std::optional<io::AtomicFolder> folder;
  comm::agree(communicator, [&] {
    if (communicator.rank() == 0) folder.emplace(target);
  });
  const std::filesystem::path temporary = communicator.broadcast_text(folder ? folder->path().string() : "", 0);
  Hashes hashes{};
  comm::agree(communicator, [&] {
    hashes = write_rank_file(rank_file(temporary, communicator.rank()), state, shards, optimizer, communicator);
  });
  const std::vector<Hashes> all = communicator.gather_values(hashes);
  comm::agree(communicator, [&] {
    if (communicator.rank() != 0) return;
    io::write_file_atomic(temporary / kManifest, manifest_json(state, shards, all).dump(1) + "\n");
    folder->publish();
  });
  return target;
}

RunState load(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
              optim::AdamW& optimizer, comm::Communicator& communicator) {
  RunState state = expected;
  std::vector<at::Tensor> roles;
  comm::agree(communicator, [&] {
    if (!std::filesystem::is_directory(folder)) bad(folder, "no such folder");
    if (!std::filesystem::exists(folder / kManifest)) bad(folder, "holds no manifest.json: not a complete checkpoint");
    try {
      const nlohmann::json manifest = io::read_json_file(folder / kManifest, ErrorClass::kBadCheckpoint);
      check_manifest(manifest, folder, expected, shards, communicator.size());
      roles = read_rank_file(folder, manifest, shards, optimizer, communicator.rank());
      state.step = manifest.at("step").get<std::int64_t>();
      state.position = {manifest.at("epoch").get<std::int64_t>(), manifest.at("step_in_epoch").get<std::int64_t>()};
      state.num_tokens = manifest.at("num_tokens").get<std::int64_t>();
      state.loss_sum = manifest.at("loss_sum").get<double>();
    } catch (const nlohmann::json::exception& error) {
      bad(folder, fmt::format("manifest.json is not as written: {}", error.what()));
    }
  });
  for (std::size_t role = 0; role < kRoles.size(); ++role) unpack(roles[role], role, shards, optimizer);
  optimizer.set_steps_taken(state.step);
  return state;
}

namespace {

std::vector<std::pair<std::int64_t, std::filesystem::path>> complete_checkpoints(
    const std::filesystem::path& output_dir) {
  std::vector<std::pair<std::int64_t, std::filesystem::path>> found;
  if (!std::filesystem::is_directory(output_dir)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(output_dir)) {
    const std::string name = entry.path().filename().string();
    const std::string digits = name.starts_with("checkpoint-") ? name.substr(11) : "";
    if (digits.empty() || digits.size() > 15 ||
        !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
      continue;
    if (std::filesystem::exists(entry.path() / kManifest)) found.emplace_back(std::stoll(digits), entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::optional<std::filesystem::path> newest(const std::filesystem::path& output_dir) {
  const auto found = complete_checkpoints(output_dir);
  if (found.empty()) return std::nullopt;
  return found.back().second;
}

std::int64_t step_of(const std::filesystem::path& folder) {
  return std::stoll(folder.filename().string().substr(std::string_view("checkpoint-").size()));
}

void prune(const std::filesystem::path& output_dir, std::int64_t keep) {
  const auto found = complete_checkpoints(output_dir);
  if (keep <= 0 || static_cast<std::int64_t>(found.size()) <= keep) return;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < found.size(); ++i)
    std::filesystem::remove_all(found[i].second);
}

}  // namespace shardtune::checkpoint
