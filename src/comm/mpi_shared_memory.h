#pragma once
#include <mpi.h>

#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

/// An MPI-3 shared window: the first rank owns the memory, the others map it.
class MpiSharedMemory : public SharedMemory {
 public:
  MpiSharedMemory(MPI_Comm comm, std::uint64_t bytes);
  ~MpiSharedMemory() override;
  MpiSharedMemory(const MpiSharedMemory&) = delete;
  MpiSharedMemory& operator=(const MpiSharedMemory&) = delete;

  std::span<std::byte> bytes() override { return bytes_; }
  void fence() override;

 private:
  MPI_Comm comm_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::span<std::byte> bytes_;
};

}  // namespace shardtune::comm
