#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "shardtune/core/error.h"
#include "shardtune/io/json.h"
#include "shardtune/io/safetensors.h"
#include "transfer.h"

namespace shardtune::io {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using detail::in_quotes;

constexpr std::size_t kMaxFiles = 4096;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool plain_file_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && std::ranges::all_of(name, allowed);
}

bool lies_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

/// A link may lead to a file of the same folder, or from a download cache's snapshots/REVISION/ to its blobs/.
void check_link(const fs::path& folder, const fs::path& path) {
  if (!fs::is_symlink(path)) return;
  const fs::path root = fs::canonical(folder);
  const fs::path target = fs::canonical(path);
  if (lies_inside(target, root)) return;
  const bool cache = root.parent_path().filename() == "snapshots";
  if (cache && lies_inside(target, root.parent_path().parent_path() / "blobs")) return;
  fail(ErrorClass::kBadModel, "{}: is a link to {}, which lies outside the model folder; put the file itself there",
       path.string(), target.string());
}

/// tensor name -> file name, as the index states it.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const json root = read_json_file(path, ErrorClass::kBadModel);
  const auto found = root.is_object() ? root.find("weight_map") : root.end();
  if (found == root.end() || !found->is_object())
    fail(ErrorClass::kBadModel, "{}: 'weight_map' is missing or is not an object", path.string());
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string() || !plain_file_name(file.get_ref<const std::string&>()))
      fail(ErrorClass::kBadModel,
           "{}: weight_map of tensor {} must be a plain file name (letters, digits, '.', '_', '-'; no folders), found "
           "{}",
           path.string(), in_quotes(tensor), in_quotes(file.is_string() ? file.get<std::string>() : file.dump()));
    map.emplace(tensor, file.get<std::string>());
  }
  if (map.empty()) fail(ErrorClass::kBadModel, "{}: 'weight_map' names no tensor", path.string());
  return map;
}

/// The files of the index in the order of their names. All missing ones are named in one error.
std::vector<std::string> shard_names(const std::map<std::string, std::string>& weight_map, const fs::path& index) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  if (names.size() > kMaxFiles)
    fail(ErrorClass::kBadModel, "{}: {} files, more than the {} allowed", index.string(), names.size(), kMaxFiles);
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (!is_there(index.parent_path() / name)) missing.push_back(name);
  if (!missing.empty())
    fail(ErrorClass::kBadModel, "{}: {} of the {} files it names are missing: {}; fetch them again", index.string(),
         missing.size(), names.size(), fmt::join(missing, ", "));
  return {names.begin(), names.end()};
}

[[noreturn]] void nothing_found(const fs::path& folder, const std::string& stem) {
  if (!is_there(folder)) fail(ErrorClass::kBadModel, "{}: no such folder", folder.string());
  const std::string expected = fmt::format("{0}.safetensors or {0}.safetensors.index.json", stem);
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"})
    if (is_there(folder / pickle))
      fail(ErrorClass::kBadModel,
           "{}: holds {}, a pickle file, which can run code and is not read; expected {}. Convert it with "
           "save_pretrained() of a current Transformers or PEFT",
           folder.string(), pickle, expected);
  fail(ErrorClass::kBadModel, "{}: holds no weights: expected {}", folder.string(), expected);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const fs::path& folder, const std::string& stem) : folder_(folder) {
  const fs::path single = folder / (stem + ".safetensors");
  const fs::path index = folder / (stem + ".safetensors.index.json");
  if (is_there(single)) {
    check_link(folder, single);
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, info] : files_.front()->tensors()) where_.emplace(name, 0);
    return;
  }
  if (!is_there(index)) nothing_found(folder, stem);
  check_link(folder, index);
  const auto weight_map = read_index(index);
  const auto names = shard_names(weight_map, index);
  for (const std::string& name : names) {
    check_link(folder, folder / name);
    files_.push_back(std::make_unique<SafetensorsFile>(folder / name));
  }
  take_listed(weight_map, index);
}

void SafetensorsFolder::take_listed(const std::map<std::string, std::string>& weight_map, const fs::path& index) {
  std::map<std::string, std::size_t> number;
  for (std::size_t i = 0; i < files_.size(); ++i) number.emplace(files_[i]->path().filename().string(), i);
  for (const auto& [name, file] : weight_map) {
    const std::size_t i = number.at(file);
    if (!files_[i]->tensors().contains(name))
      fail(ErrorClass::kBadModel,
           "{}: tensor {} is not in {}, where the index says it is; index and files do not belong together",
           index.string(), in_quotes(name), file);
    where_.emplace(name, i);
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const auto& [name, info] : files_[i]->tensors()) {
      const auto listed = where_.find(name);
      if (listed == where_.end()) unlisted_.push_back(name);
      else if (listed->second != i)
        fail(ErrorClass::kBadModel, "{}: tensor {} is in two files, {} and {}; index and files do not belong together",
             index.string(), in_quotes(name), files_[listed->second]->path().filename().string(),
             files_[i]->path().filename().string());
    }
  }
}

const SafetensorsFile& SafetensorsFolder::file(const std::string& name) const {
  const auto found = where_.find(name);
  if (found == where_.end()) {
    const std::string near = nearest_name(name, names());
    fail(ErrorClass::kBadModel, "{}: no tensor {}{}", folder_.string(), in_quotes(name),
         near.empty() ? "" : fmt::format("; the nearest name is {}", in_quotes(near)));
  }
  return *files_[found->second];
}

const TensorInfo& SafetensorsFolder::tensor(const std::string& name) const { return file(name).tensor(name); }

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> all;
  all.reserve(where_.size());
  for (const auto& [name, number] : where_) all.push_back(name);
  return all;
}

void SafetensorsFolder::read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const {
  file(name).read(name, first_byte, out);
}

const fs::path& SafetensorsFolder::file_of(const std::string& name) const { return file(name).path(); }

}  // namespace shardtune::io
