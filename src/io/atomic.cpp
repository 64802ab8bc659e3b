#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>

#include "shardtune/io/files.h"
#include "shardtune/io/unfinished.h"
#include "transfer.h"

namespace shardtune::io {

namespace fs = std::filesystem;
using detail::system_text;

namespace {

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

std::string hidden_prefix(const fs::path& target) { return fmt::format(".tmp-{}.", target.filename().string()); }

/// A hidden name beside `target` that no other process or call chooses.
fs::path hidden_sibling(const fs::path& target) {
  static std::atomic<unsigned> count{0};
  std::random_device random;
  return parent_of(target) /
         fmt::format("{}{}.{}.{:08x}", hidden_prefix(target), ::getpid(), count.fetch_add(1), random());
}

/// Renames without replacing: a folder that another process made meanwhile stays as it is. 0 or an errno value.
int rename_to_free_name(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // Some network file systems do not know the flag.
  std::error_code ignored;
  if (fs::symlink_status(to, ignored).type() != fs::file_type::not_found) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

void fsync_tree(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() || entry.is_directory()) fsync_path(entry.path());
  fsync_path(folder);
}

}  // namespace

std::vector<fs::path> unfinished_siblings(const fs::path& target) {
  const fs::path named = target.has_filename() ? target : target.parent_path();
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(parent_of(named), error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(hidden_prefix(named))) found.push_back(at->path());
  std::ranges::sort(found);
  return found;
}

AtomicFile::AtomicFile(const fs::path& target) : target_(target), temporary_(hidden_sibling(target)) {
  SHARDTUNE_CHECK(target.has_filename(), "no file name in '{}'", target.string());
  // Renaming over a device or a pipe would take it away from everybody.
  std::error_code error;
  const fs::file_type there = fs::status(target, error).type();
  if (there != fs::file_type::regular && there != fs::file_type::not_found && there != fs::file_type::none)
    fail(ErrorClass::kBadStorage, "{}: is {}; give another name", target.string(),
         there == fs::file_type::directory ? "a directory" : "there and is not a regular file");
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    fail(ErrorClass::kBadStorage, "{}: cannot create the file ({}): {}", target_.string(),
         temporary_.filename().string(), system_text(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!published_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> data) { write_exactly(descriptor_, data, target_); }

void AtomicFile::publish() {
  SHARDTUNE_CHECK(!published_ && descriptor_ >= 0, "{} was published already", target_.string());
  detail::Descriptor file(std::exchange(descriptor_, -1));
  int result = 0;
  do result = ::fsync(file.get());
  while (result != 0 && errno == EINTR);
  if (result != 0)
    fail(ErrorClass::kBadStorage, "{}: flushing to disk failed: {}", target_.string(), system_text(errno));
  file.close_checked(target_);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    fail(ErrorClass::kBadStorage, "{}: cannot give the finished file its name: {}", target_.string(),
         system_text(errno));
  published_ = true;
  fsync_path(parent_of(target_));
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.publish();
}

AtomicFolder::AtomicFolder(const fs::path& target)
    : target_(target.has_filename() ? target : target.parent_path()), temporary_(hidden_sibling(target_)) {
  std::error_code error;
  if (fs::symlink_status(target_, error).type() != fs::file_type::not_found)
    fail(ErrorClass::kBadStorage, "{}: already exists; choose another name or remove it first", target_.string());
  fs::create_directories(parent_of(target_), error);
  if (!error) fs::create_directory(temporary_, error);
  if (error)
    fail(ErrorClass::kBadStorage, "{}: cannot make this folder: {}; choose another place or change its rights",
         target_.string(), error.message());
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::publish() {
  SHARDTUNE_CHECK(!published_, "{} was published already", target_.string());
  try {
    fsync_tree(temporary_);
  } catch (const fs::filesystem_error& error) {
    fail(ErrorClass::kBadStorage, "{}: cannot list the finished folder: {}", temporary_.string(),
         error.code().message());
  }
  if (const int error = rename_to_free_name(temporary_, target_); error == EEXIST || error == ENOTEMPTY)
    fail(ErrorClass::kBadStorage, "{}: was made by another program meanwhile; nothing was replaced", target_.string());
  else if (error != 0)
    fail(ErrorClass::kBadStorage, "{}: cannot give the finished folder its name: {}", target_.string(),
         system_text(error));
  published_ = true;
  fsync_path(parent_of(target_));
}

}  // namespace shardtune::io
