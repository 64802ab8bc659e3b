#include "mpi_shared_memory.h"

#include <algorithm>
#include <exception>

#include "mpi_check.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

MpiSharedMemory::MpiSharedMemory(MPI_Comm comm, std::uint64_t bytes) : comm_(comm) {
  int rank = 0;
  SHARDTUNE_MPI(MPI_Comm_rank(comm, &rank));
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
