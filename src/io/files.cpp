#include "shardtune/io/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "transfer.h"

namespace shardtune::io {

namespace fs = std::filesystem;
using detail::Descriptor;
using detail::system_text;
using detail::Transfer;

std::string read_text_file(const fs::path& path, ErrorClass error_class, std::uint64_t max_bytes) {
  std::uint64_t size = 0;
  const Descriptor file = detail::open_regular(path, error_class, error_class, size);
  if (size > max_bytes)
    fail(error_class, "{}: the file has {} bytes, more than the {} allowed for this kind of file", path.string(), size,
         max_bytes);
  std::string text(size, '\0');
  read_exactly(file.get(), 0, std::as_writable_bytes(std::span(text)), path);
  return text;
}

void read_exactly(int descriptor, std::uint64_t offset, std::span<std::byte> out, const fs::path& path) {
  const Transfer done = detail::read_at(descriptor, offset, out);
  if (done.bytes == out.size()) return;
  if (done.error == 0)
    fail(ErrorClass::kBadStorage,
         "{}: the file ended early: wanted {} bytes at offset {}, got {}; it became shorter since it was opened",
         path.string(), out.size(), offset, done.bytes);
  fail(ErrorClass::kBadStorage, "{}: reading failed: wanted {} bytes at offset {}, got {}: {}", path.string(),
       out.size(), offset, done.bytes, system_text(done.error));
}

void write_exactly(int descriptor, std::span<const std::byte> data, const fs::path& path) {
  const Transfer done = detail::write_next(descriptor, data);
  if (done.bytes != data.size())
    fail(ErrorClass::kBadStorage, "{}: writing failed: wanted to write {} bytes, wrote {}: {}", path.string(),
         data.size(), done.bytes, system_text(done.error));
}

namespace {

/// Neither waits at a pipe nor follows a link: the file is one of this folder.
Descriptor open_for_appending(const fs::path& path, std::uint64_t& size_bytes) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
  struct stat status {};
  if (file.get() < 0 && errno == ELOOP)
    fail(ErrorClass::kBadStorage, "{}: expected a regular file, found a link; remove it", path.string());
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0)
    fail(ErrorClass::kBadStorage, "{}: cannot open for appending: {}", path.string(), system_text(errno));
  if (!S_ISREG(status.st_mode))
    fail(ErrorClass::kBadStorage, "{}: expected a regular file, found a device, pipe or socket; remove it",
         path.string());
  size_bytes = static_cast<std::uint64_t>(status.st_size);
  return file;
}

bool ends_in_half_a_line(int descriptor, std::uint64_t size_bytes, const fs::path& path) {
  if (size_bytes == 0) return false;
  std::byte last{};
  read_exactly(descriptor, size_bytes - 1, {&last, 1}, path);
  return last != std::byte{'\n'};
}

}  // namespace

void append_line(const fs::path& path, std::string_view line) {
  SHARDTUNE_CHECK(line.find('\n') == std::string_view::npos, "one line only: {}", line);
  std::uint64_t size = 0;
  Descriptor file = open_for_appending(path, size);
  std::string text(ends_in_half_a_line(file.get(), size, path) ? 1 : 0, '\n');
  text.append(line).append(1, '\n');
  try {
    write_exactly(file.get(), std::as_bytes(std::span(text)), path);
  } catch (const Error&) {
    // Half a line would spoil the next one; when even this fails the first error is the one to tell.
    [[maybe_unused]] const int ignored = ::ftruncate(file.get(), static_cast<off_t>(size));
    throw;
  }
  file.close_checked(path);
}

void fsync_path(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0)
    fail(ErrorClass::kBadStorage, "{}: cannot open to flush it to disk: {}", path.string(), system_text(errno));
  int result = 0;
  do result = ::fsync(file.get());
  while (result != 0 && errno == EINTR);
  if (result == 0) return;
  // Some network file systems cannot flush folders and say so with EINVAL; a file must be flushed in any case.
  const int error = errno;
  std::error_code ignored;
  if (error == EINVAL && fs::is_directory(path, ignored)) return;
  fail(ErrorClass::kBadStorage, "{}: flushing to disk failed: {}", path.string(), system_text(error));
}

void ensure_writable_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder, error)) error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    fail(ErrorClass::kBadStorage, "{}: cannot make this folder: {}; choose another folder or change its rights",
         folder.string(), error.message());
  std::string probe = (folder / ".write-test-XXXXXX").string();
  const Descriptor file(::mkstemp(probe.data()));
  if (file.get() < 0)
    fail(ErrorClass::kBadStorage,
         "{}: cannot create a file in this folder: {}; choose another folder or change its rights", folder.string(),
         system_text(errno));
  const std::byte one{0};
  const Transfer done = detail::write_next(file.get(), {&one, 1});
  ::unlink(probe.c_str());
  if (done.bytes != 1)
    fail(ErrorClass::kBadStorage, "{}: cannot write into this folder: {}; choose another folder or free some space",
         folder.string(), system_text(done.error));
}

}  // namespace shardtune::io
