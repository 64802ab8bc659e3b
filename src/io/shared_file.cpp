#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "shardtune/io/files.h"
#include "shardtune/io/safetensors_layout.h"
#include "transfer.h"

namespace shardtune::io {
namespace {

int open_for_writing(const std::filesystem::path& path, int flags) {
  int descriptor = -1;
  do descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0)
    fail(ErrorClass::kBadStorage, "{}: cannot open for writing: {}", path.string(), detail::system_text(errno));
  return descriptor;
}

}  // namespace

void SharedFile::create(const std::filesystem::path& path, std::span<const std::byte> head, std::uint64_t bytes) {
  detail::Descriptor file(open_for_writing(path, O_CREAT | O_EXCL));
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    fail(ErrorClass::kBadStorage, "{}: cannot make a file of {} bytes: {}", path.string(), bytes,
         detail::system_text(errno));
  write_exactly(file.get(), head, path);
  file.close_checked(path);
}

SharedFile::SharedFile(const std::filesystem::path& path) : path_(path), descriptor_(open_for_writing(path, 0)) {}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void SharedFile::write(std::uint64_t offset, std::span<const std::byte> data) {
  const detail::Transfer done = detail::write_at(descriptor_, offset, data);
  if (done.bytes == data.size()) return;
  fail(ErrorClass::kBadStorage, "{}: writing {} bytes at offset {}: {} written: {}", path_.string(), data.size(),
       offset, done.bytes, detail::system_text(done.error));
}

void SharedFile::finish() {
  detail::Descriptor file(std::exchange(descriptor_, -1));
  int result = 0;
  do result = ::fsync(file.get());
  while (result != 0 && errno == EINTR);
  if (result != 0)
    fail(ErrorClass::kBadStorage, "{}: flushing to disk failed: {}", path_.string(), detail::system_text(errno));
  file.close_checked(path_);
}

}  // namespace shardtune::io
