#include <unistd.h>

#include <utility>

#include "safetensors_header.h"
#include "shardtune/core/error.h"
#include "shardtune/io/safetensors.h"
#include "transfer.h"

namespace shardtune::io {

std::int64_t TensorInfo::elements() const {
  std::int64_t product = 1;  // cannot overflow: the header check multiplied it before
  for (const std::int64_t size : shape) product *= size;
  return product;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  std::uint64_t file_bytes = 0;
  detail::Descriptor file = detail::open_regular(path, ErrorClass::kBadModel, ErrorClass::kBadStorage, file_bytes);
  auto header = detail::read_safetensors_header(file.get(), file_bytes, path);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  descriptor_ = file.release();
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)),
      tensors_(std::move(other.tensors_)), metadata_(std::move(other.metadata_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(tensors_, other.tensors_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

const TensorInfo& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string_view> names;  // std::views::keys of a map does not compile with clang 14 on GCC 12's library
  for (const auto& entry : tensors_) names.push_back(entry.first);
  const std::string near = nearest_name(name, names);
  fail(ErrorClass::kBadModel, "{}: no tensor {}{}", path_.string(), detail::in_quotes(name),
       near.empty() ? "" : fmt::format("; the nearest name is {}", detail::in_quotes(near)));
}

void SafetensorsFile::read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const {
  const TensorInfo& info = tensor(name);
  SHARDTUNE_CHECK(first_byte <= info.bytes && out.size() <= info.bytes - first_byte,
                  "{}: tensor {} has {} bytes, asked for {} from {}", path_.string(), name, info.bytes, out.size(),
                  first_byte);
  const detail::Transfer done = detail::read_at(descriptor_, info.file_offset + first_byte, out);
  if (done.bytes == out.size()) return;
  fail(ErrorClass::kBadStorage, "{}: reading tensor {}: wanted {} bytes at offset {} of the file, got {}: {}",
       path_.string(), detail::in_quotes(name), out.size(), info.file_offset + first_byte, done.bytes,
       done.error == 0 ? "the file became shorter since it was opened" : detail::system_text(done.error));
}

}  // namespace shardtune::io
