#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "shardtune/core/error.h"

namespace shardtune::io {

/// Whole regular file as text. Error(error_class) when missing, not a regular file, not permitted or over `max_bytes`;
/// Error(kBadStorage) when reading it fails.
std::string read_text_file(const std::filesystem::path& path, ErrorClass error_class,
                           std::uint64_t max_bytes = 64ull << 20);

/// A file that appears under its name (replacing an older one) only when complete: hidden temporary file in the same
/// folder, publish() does fsync, rename and fsync of the folder. The destructor removes an unpublished one. Every error is
/// Error(kBadStorage) with the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends.
  void write(std::span<const std::byte> data);
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  bool published_ = false;
};

/// Writes through an AtomicFile: nothing half-written stays.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// Appends one line (without its line end) to a regular file, made when missing, and hands it to the kernel (metrics.jsonl).
/// Half a line at its end (a node that died) is ended first. When the disk is full, no half line stays. Error(kBadStorage),
/// also for a link, pipe or device of that name. One writer at a time.
void append_line(const std::filesystem::path& path, std::string_view line);

/// Reads/writes exactly out.size() bytes at `offset`; retries short transfers and EINTR. `path` only for messages.
void read_exactly(int descriptor, std::uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path);
void write_exactly(int descriptor, std::span<const std::byte> data, const std::filesystem::path& path);

/// Flushes a file or folder to disk.
void fsync_path(const std::filesystem::path& path);

/// A folder that appears under its final name only when complete: files are written into a hidden sibling, publish()
/// syncs them and renames. The destructor removes an unpublished one. An existing target is an error, also when it appears
/// between construction and publish(). Parents are made.
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

/// Holds a folder for this process, which ends with the object or the process, however that ends. Error(kBadStorage) when
/// another process holds it. Some network file systems cannot lock a folder: then `problem()` says why, and nothing is held.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& problem() const { return problem_; }

 private:
  int descriptor_ = -1;
  std::string problem_;
};

}  // namespace shardtune::io
