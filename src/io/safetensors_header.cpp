#include "safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "shardtune/io/files.h"
#include "shardtune/io/json.h"
#include "transfer.h"

namespace shardtune::io::detail {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxTensors = 200'000;
constexpr std::size_t kMaxRank = 8;
/// One tensor has at most 5 + kMaxRank values besides its name; unknown fields and metadata get as much again.
constexpr JsonLimits kHeaderLimits{kMaxHeaderBytes, 16, 26 * kMaxTensors};

template <typename... Args>
[[noreturn]] void refuse(const fs::path& path, fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorClass::kBadModel, "{}: {}", path.string(), fmt::format(format, std::forward<Args>(args)...));
}

/// A clone without large-file support leaves a text of three lines in place of the file.
void refuse_pointer_text(int descriptor, std::uint64_t file_bytes, const fs::path& path) {
  if (file_bytes > 1024) return;
  std::string text(file_bytes, '\0');
  read_exactly(descriptor, 0, std::as_writable_bytes(std::span(text)), path);
  if (!text.starts_with("version ") || text.find("\noid sha256:") == std::string::npos) return;
  refuse(path,
         "this is only the Git LFS pointer text of {} bytes; the real file was not fetched. Fetch it, for example with "
         "'git lfs pull'",
         file_bytes);
}

std::uint64_t header_bytes(int descriptor, std::uint64_t file_bytes, const fs::path& path) {
  if (file_bytes < 8)
    refuse(path, "the file has {} bytes; a safetensors file has at least 8 (the length of its header)", file_bytes);
  std::array<unsigned char, 8> raw{};
  read_exactly(descriptor, 0, std::as_writable_bytes(std::span(raw)), path);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | raw[static_cast<std::size_t>(i)];
  if (length > kMaxHeaderBytes)
    refuse(path,
           "the header length field says {} bytes, more than the {} allowed; this is not a safetensors file or its "
           "start is damaged",
           length, kMaxHeaderBytes);
  if (length > file_bytes - 8)
    refuse(path,
           "the header is longer than the file: {} bytes stated, {} bytes follow; the file was cut, fetch it again",
           length, file_bytes - 8);
  if (length == 0) refuse(path, "the header is empty (length 0); expected a JSON object");
  return length;
}

const json& field(const json& entry, const char* key, const std::string& name, const fs::path& path) {
  const auto found = entry.find(key);
  if (found == entry.end()) refuse(path, "tensor {}: the field '{}' is missing", in_quotes(name), key);
  return *found;
}

std::uint64_t natural(const json& value, const char* what, const std::string& name, const fs::path& path) {
  if (value.is_number_integer() && !value.is_number_unsigned())
    refuse(path, "tensor {}: {} is negative: {}", in_quotes(name), what, value.get<std::int64_t>());
  if (!value.is_number_unsigned())
    refuse(path, "tensor {}: {} is not a whole number that fits 64 bits", in_quotes(name), what);
  return value.get<std::uint64_t>();
}

Dtype read_dtype(const json& entry, const std::string& name, const fs::path& path) {
  const json& value = field(entry, "dtype", name, path);
  if (!value.is_string()) refuse(path, "tensor {}: 'dtype' is not a string", in_quotes(name));
  const auto dtype = dtype_from_name(value.get_ref<const std::string&>());
  if (!dtype)
    refuse(path,
           "tensor {}: unknown dtype {}; known are BOOL, U8 to U64, I8 to I64, F8_E4M3, F8_E5M2, F16, BF16, F32, F64",
           in_quotes(name), in_quotes(value.get_ref<const std::string&>()));
  return *dtype;
}

/// Reads the shape and returns the bytes it needs.
std::uint64_t read_shape(const json& entry, const std::string& name, const fs::path& path, TensorInfo& info) {
  const json& value = field(entry, "shape", name, path);
  if (!value.is_array()) refuse(path, "tensor {}: 'shape' is not a list", in_quotes(name));
  if (value.size() > kMaxRank)
    refuse(path, "tensor {}: {} dimensions, more than the {} allowed", in_quotes(name), value.size(), kMaxRank);
  std::uint64_t bytes = dtype_bytes(info.dtype);
  for (const json& item : value) {
    const std::uint64_t size = natural(item, "a dimension of 'shape'", name, path);
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        __builtin_mul_overflow(bytes, size, &bytes))
      refuse(path, "tensor {}: the product of shape {} overflows 64 bits", in_quotes(name), value.dump());
    info.shape.push_back(static_cast<std::int64_t>(size));
  }
  return bytes;
}

TensorInfo read_entry(const json& entry, const std::string& name, const fs::path& path) {
  if (!entry.is_object()) refuse(path, "tensor {}: its entry in the header is not an object", in_quotes(name));
  TensorInfo info;
  info.dtype = read_dtype(entry, name, path);
  const std::uint64_t needed = read_shape(entry, name, path, info);
  const json& offsets = field(entry, "data_offsets", name, path);
  if (!offsets.is_array() || offsets.size() != 2)
    refuse(path, "tensor {}: 'data_offsets' must be 2 numbers, found {}", in_quotes(name),
           offsets.is_array() ? fmt::format("{}", offsets.size()) : "no list");
  const std::uint64_t begin = natural(offsets[0], "the first of 'data_offsets'", name, path);
  const std::uint64_t end = natural(offsets[1], "the second of 'data_offsets'", name, path);
  if (end < begin) refuse(path, "tensor {}: 'data_offsets' are reversed: [{}, {}]", in_quotes(name), begin, end);
  if (end - begin != needed)
    refuse(path, "tensor {}: shape and dtype need {} bytes, but 'data_offsets' [{}, {}] give {}", in_quotes(name),
           needed, begin, end, end - begin);
  info.file_offset = begin;  // becomes an offset in the file once the whole header is known to be sound
  info.bytes = needed;
  return info;
}

void read_metadata(const json& value, const fs::path& path, SafetensorsHeader& header) {
  if (!value.is_object()) refuse(path, "'__metadata__' is not an object");
  for (const auto& [key, item] : value.items()) {
    if (!item.is_string()) refuse(path, "'__metadata__': the value of {} is not a string", in_quotes(key));
    header.metadata.emplace(key, item.get<std::string>());
  }
}

/// Every data byte belongs to exactly one tensor.
void check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes, const fs::path& path) {
  std::vector<const std::pair<const std::string, TensorInfo>*> sorted;
  for (const auto& item : header.tensors) sorted.push_back(&item);
  // By begin, then end: an empty tensor may lie between two others.
  std::ranges::stable_sort(sorted, {},
                           [](const auto* item) { return std::tuple(item->second.file_offset, item->second.bytes); });
  std::uint64_t next = 0;
  const std::string* previous = nullptr;
  for (const auto* item : sorted) {
    const auto& [name, info] = *item;
    if (info.file_offset > next)
      refuse(path, "tensor {}: a hole before it: data bytes {} to {} belong to no tensor", in_quotes(name), next,
             info.file_offset);
    if (info.file_offset < next) {
      const TensorInfo& other = header.tensors.at(*previous);
      const bool same = other.file_offset == info.file_offset && other.bytes == info.bytes;
      refuse(path, "tensor {}: its data bytes {} to {} {} tensor {}", in_quotes(name), info.file_offset,
             info.file_offset + info.bytes, same ? "are the same as those of" : "overlap those of",
             in_quotes(*previous));
    }
    next = info.file_offset + info.bytes;
    previous = &name;
  }
  if (next > data_bytes)
    refuse(path, "tensor {}: the data is cut: the header needs {} data bytes, the file has {}; fetch the file again",
           in_quotes(*previous), next, data_bytes);
  if (next < data_bytes)
    refuse(path, "{} trailing bytes after the last tensor; the header needs {} data bytes, the file has {}",
           data_bytes - next, next, data_bytes);
}

}  // namespace

SafetensorsHeader read_safetensors_header(int descriptor, std::uint64_t file_bytes, const fs::path& path) {
  refuse_pointer_text(descriptor, file_bytes, path);
  const std::uint64_t length = header_bytes(descriptor, file_bytes, path);
  std::string text(length, '\0');
  read_exactly(descriptor, 8, std::as_writable_bytes(std::span(text)), path);
  const json root = parse_json(text, path.string() + ": header", ErrorClass::kBadModel, kHeaderLimits);
  if (!root.is_object() || text.front() != '{') refuse(path, "the header is not a JSON object that starts with '{{'");

  SafetensorsHeader header;
  const std::size_t count = root.size() - root.count("__metadata__");
  if (count > kMaxTensors) refuse(path, "{} tensors, more than the {} allowed", count, kMaxTensors);
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") read_metadata(entry, path, header);
    else header.tensors.emplace(name, read_entry(entry, name, path));
  }
  check_layout(header, file_bytes - 8 - length, path);
  for (auto& [name, info] : header.tensors) info.file_offset += 8 + length;
  return header;
}

}  // namespace shardtune::io::detail
