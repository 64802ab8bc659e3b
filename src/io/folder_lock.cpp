#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "shardtune/core/error.h"
#include "shardtune/io/files.h"

namespace shardtune::io {

FolderLock::FolderLock(const std::filesystem::path& folder)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int code = errno;
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (code == EWOULDBLOCK)
    fail(ErrorClass::kBadStorage,
         "'{}' is in use by another run, which holds its lock; wait until that one has ended, or give another folder",
         folder.string());
  problem_ = std::system_category().message(code);
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace shardtune::io
