#include "mpi_shared_memory.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "mpi_check.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

namespace {

/// Where Open MPI puts shared windows. A window larger than the room there is made without complaint, and the first rank that
/// writes to the missing part is killed: containers often have 64 MiB.
constexpr const char* kBackingFolder = "/dev/shm";

/// What must be there for a window of `bytes`: Open MPI asks for 5 % and a page more, and a window that it refuses leaves
/// the other ranks waiting; its own message queues, a few MiB a rank, lie there too and grow.
std::uint64_t wanted_room(std::uint64_t bytes, int ranks) {
  return bytes + bytes / 16 + (static_cast<std::uint64_t>(ranks) << 22);
}

/// The first rank looks, all ranks get its answer.
void require_room(MPI_Comm comm, int rank, std::uint64_t bytes) {
  int ranks = 0;
  SHARDTUNE_MPI(MPI_Comm_size(comm, &ranks));
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();
  struct statvfs status {};
  if (rank == 0 && ::statvfs(kBackingFolder, &status) == 0)
    room = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  SHARDTUNE_MPI(MPI_Bcast(&room, 1, MPI_UINT64_T, 0, comm));
  if (room < wanted_room(bytes, ranks))
    fail(
        ErrorClass::kOutOfMemory,
        "{} has room for {} bytes, the base that the ranks of a node share takes {}, and with what MPI needs beside it "
        "{}; enlarge it (in a container: its shm size), or give --share_base_on_node false",
        kBackingFolder, room, bytes, wanted_room(bytes, ranks));
}

}  // namespace

MpiSharedMemory::MpiSharedMemory(MPI_Comm comm, std::uint64_t bytes) : comm_(comm) {
  int rank = 0;
  SHARDTUNE_MPI(MPI_Comm_rank(comm, &rank));
  require_room(comm, rank, bytes);
  void* base = nullptr;
  const auto own = static_cast<MPI_Aint>(rank == 0 ? bytes : 0);
  const int code = MPI_Win_allocate_shared(own, 1, MPI_INFO_NULL, comm, &base, &window_);
  if (code != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail(ErrorClass::kOutOfMemory, "no {} bytes of memory shared by the ranks of this node: {}", bytes, text);
  }
  SHARDTUNE_MPI(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
  MPI_Aint size = 0;
  int unit = 0;
  SHARDTUNE_MPI(MPI_Win_shared_query(window_, 0, &size, &unit, &base));
  bytes_ = {static_cast<std::byte*>(base), static_cast<std::size_t>(bytes)};
  if (rank == 0) std::fill(bytes_.begin(), bytes_.end(), std::byte{0});
  fence();
}

MpiSharedMemory::~MpiSharedMemory() {
  // Freeing waits for all ranks. When an error is on its way this rank may be the only one here: the end of the job frees it.
  if (std::uncaught_exceptions() > 0) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

void MpiSharedMemory::fence() {
  SHARDTUNE_MPI(MPI_Win_sync(window_));
  SHARDTUNE_MPI(MPI_Barrier(comm_));
  SHARDTUNE_MPI(MPI_Win_sync(window_));
}

}  // namespace shardtune::comm
