#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "shardtune/core/error.h"

namespace shardtune::io {

/// Whole regular file as text. Error(error_class) when missing, not a regular file, unreadable or over `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, ErrorClass error_class, std::uint64_t max_bytes = 64ull << 20);

/// Writes through a temporary file in the same folder, fsync, rename, fsync of the folder. Error(kBadStorage) with the
/// path and the system's reason; nothing half-written stays.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// Appends one line and flushes it to the kernel (metrics.jsonl).
void append_line(const std::filesystem::path& path, std::string_view line);

/// Reads/writes exactly out.size() bytes at `offset`; retries short transfers and EINTR. `path` only for messages.
void read_exactly(int descriptor, std::uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path);
void write_exactly(int descriptor, std::span<const std::byte> data, const std::filesystem::path& path);

void fsync_path(const std::filesystem::path& path);

/// A folder that appears under its final name only when complete: files are written into a hidden sibling, publish()
/// syncs them and renames. The destructor removes an unpublished one. An existing target is an error.
class AtomicFolder {
 public:
  explicit AtomicFolder(const std::filesystem::path& target);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to write until publish().
  const std::filesystem::path& path() const { return temporary_; }
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool published_ = false;
};

/// Makes the folder (with parents) and proves that a file can be created in it; Error(kBadStorage) otherwise.
void ensure_writable_folder(const std::filesystem::path& folder);

}  // namespace shardtune::io
