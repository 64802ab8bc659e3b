#include "transfer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace shardtune::io::detail {

std::uint64_t max_piece_bytes = 1ull << 30;

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

void Descriptor::close_checked(const std::filesystem::path& path) {
  // Linux frees the descriptor even when close() fails, EINTR included, so it is never called twice.
  if (::close(release()) != 0 && errno != EINTR)
    fail(ErrorClass::kBadStorage, "{}: closing the written file failed: {}", path.string(), system_text(errno));
}

Transfer read_at(int descriptor, std::uint64_t offset, std::span<std::byte> out) noexcept {
  Transfer done;
  while (done.bytes < out.size()) {
    const std::size_t wanted = std::min<std::uint64_t>(out.size() - done.bytes, max_piece_bytes);
    const ssize_t got = ::pread(descriptor, out.data() + done.bytes, wanted, static_cast<off_t>(offset + done.bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) done.error = errno;
    if (got <= 0) break;
    done.bytes += static_cast<std::uint64_t>(got);
  }
  return done;
}

namespace {

/// `put_some(from, bytes, done)` is one system call; `done` bytes were written before.
template <typename Put>
Transfer write_all(std::span<const std::byte> data, Put&& put_some) noexcept {
  Transfer done;
  while (done.bytes < data.size()) {
    const std::size_t wanted = std::min<std::uint64_t>(data.size() - done.bytes, max_piece_bytes);
    const ssize_t put = put_some(data.data() + done.bytes, wanted, done.bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      // No progress without an error code would loop for ever; a device that takes nothing is full.
      done.error = put < 0 ? errno : ENOSPC;
      break;
    }
    done.bytes += static_cast<std::uint64_t>(put);
  }
  return done;
}

}  // namespace

Transfer write_next(int descriptor, std::span<const std::byte> data) noexcept {
  return write_all(
      data, [&](const std::byte* from, std::size_t bytes, std::uint64_t) { return ::write(descriptor, from, bytes); });
}

Transfer write_at(int descriptor, std::uint64_t offset, std::span<const std::byte> data) noexcept {
  return write_all(data, [&](const std::byte* from, std::size_t bytes, std::uint64_t done) {
    return ::pwrite(descriptor, from, bytes, static_cast<off_t>(offset + done));
  });
}

std::string system_text(int error) { return std::generic_category().message(error); }

Descriptor open_regular(const std::filesystem::path& path, ErrorClass missing_class, ErrorClass refused_class,
                        std::uint64_t& size_bytes) {
  int value = -1;
  // Non-blocking: opening a named pipe must not wait for a writer.
  do value = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  while (value < 0 && errno == EINTR);
  if (value < 0) {
    const int error = errno;
    const bool missing = error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
    fail(missing ? missing_class : refused_class, "{}: cannot open for reading: {}", path.string(), system_text(error));
  }
  Descriptor descriptor(value);
  struct stat status {};
  if (::fstat(value, &status) != 0)
    fail(ErrorClass::kBadStorage, "{}: cannot read its size: {}", path.string(), system_text(errno));
  if (!S_ISREG(status.st_mode))
    fail(missing_class, "{}: expected a regular file, found {}", path.string(),
         S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket");
  size_bytes = static_cast<std::uint64_t>(status.st_size);
  return descriptor;
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kMost = 200;
  if (name.size() <= kMost) return fmt::format("'{}'", name);
  return fmt::format("'{}...' ({} bytes)", name.substr(0, kMost), name.size());
}

}  // namespace shardtune::io::detail
