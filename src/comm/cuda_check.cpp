#include "cuda_check.h"

#include <mpi.h>
#include <unistd.h>

#include "shardtune/core/error.h"

namespace shardtune::comm {

std::string host_of_process() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string place_of_process() {
  int started = 0, ended = 0, rank = -1;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started == 0 || ended != 0) return host_of_process();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return fmt::format("rank {} ({})", rank, host_of_process());
}

void check_cuda(cudaError_t code, const char* expression, const char* file, int line) {
  if (code == cudaSuccess) return;
  // Takes the error off the runtime's record, where the next look after a kernel launch would find it again.
  cudaGetLastError();
  fail(code == cudaErrorMemoryAllocation ? ErrorClass::kOutOfMemory : ErrorClass::kBadNode,
       "{} failed at {}:{} on {}: {} ({})", expression, file, line, place_of_process(), cudaGetErrorString(code),
       cudaGetErrorName(code));
}

}  // namespace shardtune::comm
