#include "quantised_cache.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/core/memory_reserve.h"
#include "shardtune/core/ops.h"
#include "shardtune/io/files.h"
#include "shardtune/io/hdf5.h"
#include "shardtune/io/json.h"
#include "shardtune/quant/options.h"

namespace shardtune::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kManifest = "manifest.json";
constexpr std::int64_t kChunk = 1 << 20;  ///< bytes under one hash
constexpr std::size_t kHdf5FileBytes = 4 << 20;  ///< what HDF5 takes for an open file, with room

std::string hex(const XXH128_hash_t& hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

/// Size and time of change: a model that is written anew has others.
std::string describe_file(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    fail(ErrorClass::kBadStorage, "{}: cannot be looked at: {}", path.string(), std::strerror(errno));
  return fmt::format("{} {} {}.{:09}", path.filename().string(), status.st_size, status.st_mtim.tv_sec,
                     status.st_mtim.tv_nsec);
}

std::string fingerprint_of(const Run& run, const io::SafetensorsFolder& base) {
  std::string text =
      fmt::format("{} {} {}\n", kVersion, quant::describe(*run.lora->base_format), type_name(run.precision.base));
  std::set<fs::path> files;
  for (const std::string& name : base.names()) {
    const io::TensorInfo& info = base.tensor(name);
    files.insert(base.file_of(name));
    text += fmt::format("{} {} {} {} {}\n", name, dtype_name(info.dtype), info.file_offset, info.bytes,
                        base.file_of(name).filename().string());
  }
  for (const fs::path& file : files) text += describe_file(file) + "\n";
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    for (const model::Parameter& parameter : run.shards->spec(unit).parameters)
      if (!parameter.trainable) text += parameter.name + " ";
    text += "\n";
  }
  return hex(XXH3_128bits(text.data(), text.size()));
}

/// A name for people, and a hash that tells folders of one name apart.
std::string folder_name(const Run& run) {
  const fs::path model = fs::weakly_canonical(run.options.model.model_name_or_path);
  std::string format = quant::describe(*run.lora->base_format);
  std::ranges::replace_if(
      format, [](char c) { return c == ' ' || c == ','; }, '-');
  const std::string path = model.string();
  return fmt::format("{}-{}-{:016x}", model.filename().string(), format, XXH3_64bits(path.data(), path.size()));
}

std::vector<std::uint64_t> hashes_of(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t at = 0; at < bytes.size(); at += kChunk) {
    const auto chunk = bytes.subspan(at, std::min<std::size_t>(kChunk, bytes.size() - at));
    hashes.push_back(XXH3_64bits(chunk.data(), chunk.size()));
  }
  return hashes;
}

std::string part_name(std::int64_t part) { return fmt::format("part-{:05}.h5", part); }

std::string dataset(std::size_t unit) { return fmt::format("unit-{:05}", unit); }

/// Reads bytes [begin, begin + to.size()) of a part's dataset, whole chunks of it, so that their hashes can be compared.
void read_checked(const io::Hdf5File& file, const fs::path& path, const std::string& name, std::int64_t begin,
                  std::span<std::byte> to) {
  const auto bytes = static_cast<std::int64_t>(file.info(name).elements);
  std::vector<std::byte> chunk(static_cast<std::size_t>(kChunk));
  const auto end = begin + static_cast<std::int64_t>(to.size());
  if (end > bytes) fail(ErrorClass::kBadStorage, "{}: '{}' has {} bytes, expected {}", path.string(), name, bytes, end);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t number = at / kChunk, first = number * kChunk, size = std::min(kChunk, bytes - first);
    const std::span<std::byte> whole = std::span(chunk).first(static_cast<std::size_t>(size));
    file.read(name, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(size), whole);
    std::uint64_t hash = 0;
    file.read(name + "-hashes", static_cast<std::uint64_t>(number), 1, std::as_writable_bytes(std::span(&hash, 1)));
    if (XXH3_64bits(whole.data(), whole.size()) != hash)
      fail(ErrorClass::kBadStorage, "{}: '{}' is damaged in its MiB {}", path.string(), name, number);
    const std::int64_t count = std::min(end, first + size) - at;
    std::memcpy(to.data() + (at - begin), whole.data() + (at - first), static_cast<std::size_t>(count));
    at += count;
  }
}

}  // namespace

namespace {

/// Before the work of quantising: a folder that cannot be made, and what is not a cache's and would be replaced.
void check_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (error)
    fail(ErrorClass::kBadStorage, "--quantised_cache: {} cannot be made: {}; give another folder, or change its rights",
         folder.parent_path().string(), error.message());
  if (!fs::exists(fs::symlink_status(folder))) return;
  std::string foreign = fs::is_directory(fs::symlink_status(folder)) ? "" : folder.string();
  if (foreign.empty())
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name != kManifest && !name.starts_with("part-")) foreign = entry.path().string();
    }
  if (!foreign.empty())
    fail(ErrorClass::kBadStorage, "--quantised_cache: {} was left by no run and would be lost; move it away", foreign);
}

}  // namespace

QuantisedCache::QuantisedCache(Run& run, const io::SafetensorsFolder& base) : run_(run) {
  comm::agree_on_root(*run.communicator, [&] {
    folder_ = fs::path(run.options.quant.quantised_cache) / folder_name(run);
    check_folder(folder_);
    fingerprint_ = fingerprint_of(run, base);
  });
  folder_ = run.communicator->broadcast_text(folder_.string(), 0);
  fingerprint_ = run.communicator->broadcast_text(fingerprint_, 0);
}

comm::Communicator& QuantisedCache::holders() const {
  return run_.shards->shares_base() ? run_.mesh->node() : run_.mesh->shard();
}

std::vector<std::size_t> QuantisedCache::quantised_units() const {
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < run_.shards->units(); ++unit)
    if (run_.shards->frozen(unit).local().scalar_type() == at::kByte) units.push_back(unit);
  return units;
}

bool QuantisedCache::read() {
  std::string manifest;
  comm::agree_on_root(*run_.communicator, [&] {
    if (!fs::exists(folder_)) return;
    if (const fs::path file = folder_ / kManifest; fs::is_regular_file(file))
      manifest = io::read_text_file(file, ErrorClass::kBadStorage, 1 << 20);
    if (manifest.empty()) problem_ = fmt::format("{}: no manifest, or an empty one", (folder_ / kManifest).string());
  });
  manifest = run_.communicator->broadcast_text(manifest, 0);
  problem_ = run_.communicator->broadcast_text(problem_, 0);
  if (manifest.empty()) return false;
  // What is wrong on one rank must make all of them load.
  std::string problem;
  try {
    read_shards(manifest);
  } catch (...) {
    problem = comm::current_failure().message;
  }
  const std::vector<int> failed = run_.communicator->gather_values(problem.empty() ? 0 : 1);
  const auto first = std::ranges::find(failed, 1);
  if (first == failed.end()) return true;
  problem_ = run_.communicator->broadcast_text(problem, static_cast<int>(first - failed.begin()));
  return false;
}

void QuantisedCache::read_shards(const std::string& text) {
  const std::string where = (folder_ / kManifest).string();
  const json manifest = io::parse_json(text, where, ErrorClass::kBadStorage);
  if (!manifest.is_object() || manifest.value("fingerprint", json()) != fingerprint_)
    fail(ErrorClass::kBadStorage, "{}: made from other files or with other options", where);
  const json number = manifest.value("parts", json());
  if (!number.is_number_integer() || number.get<std::int64_t>() < 1 || number.get<std::int64_t>() > 1'000'000)
    fail(ErrorClass::kBadStorage, "{}: says {} for 'parts'", where, number.dump());
  const auto parts = number.get<std::int64_t>();
  std::vector<std::int64_t> part_bytes;
  for (const std::size_t unit : quantised_units())
    part_bytes.push_back(fsdp::layout_of(run_.shards->spec(unit), {}, parts, run_.precision.base).shard_elements());
  for (std::int64_t part = 0; part < parts; ++part) read_part(part, part_bytes);
}

/// What lies in this part of the rank's bytes of all units, of which it holds `part_bytes` each. What lies behind the last part is
/// padding.
void QuantisedCache::read_part(std::int64_t part, const std::vector<std::int64_t>& part_bytes) {
  const fs::path path = folder_ / part_name(part);
  std::optional<io::Hdf5File> file;
  const std::vector<std::size_t> units = quantised_units();
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::size_t unit = units[i];
    const std::span<std::byte> to = ops::bytes_of(run_.shards->frozen(unit).local());
    const std::int64_t size = std::ssize(to), begin = holders().rank() * size, part_begin = part * part_bytes[i];
    const std::int64_t from = std::max(begin, part_begin), end = std::min(begin + size, part_begin + part_bytes[i]);
    if (from >= end) continue;
    if (!file) {
      require_memory(kHdf5FileBytes);
      file.emplace(io::Hdf5File::open(path));
    }
    read_checked(*file, path, dataset(unit), from - part_begin,
                 to.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(end - from)));
  }
}

void QuantisedCache::write() {
  comm::Communicator& world = *run_.communicator;
  std::optional<io::AtomicFolder> folder;
  comm::agree_on_root(world, [&] {
    fs::remove_all(folder_);
    folder.emplace(folder_);
  });
  const fs::path temporary = world.broadcast_text(folder ? folder->path().string() : "", 0);
  // The group that holds the base together with rank 0.
  const std::vector<int> members = holders().gather_values(world.rank());
  const bool writes = std::ranges::find(members, 0) != members.end();
  comm::agree(world, [&] {
    if (!writes) return;
    require_memory(kHdf5FileBytes);
    io::Hdf5File file = io::Hdf5File::create(temporary / part_name(holders().rank()));
    for (const std::size_t unit : quantised_units()) {
      const std::span<const std::byte> bytes = ops::bytes_of(run_.shards->frozen(unit).local());
      const std::vector<std::uint64_t> hashes = hashes_of(bytes);
      file.write(dataset(unit), Dtype::kU8, bytes.size(), bytes);
      file.write(dataset(unit) + "-hashes", Dtype::kU64, hashes.size(), std::as_bytes(std::span(hashes)));
    }
    file.close();
  });
  comm::agree_on_root(world, [&] {
    const json manifest = {{"fingerprint", fingerprint_}, {"parts", holders().size()}};
    io::write_file_atomic(temporary / kManifest, manifest.dump(2) + "\n");
    // Another run may have been faster with the same.
    if (!fs::exists(folder_)) folder->publish();
  });
}

}  // namespace shardtune::train
