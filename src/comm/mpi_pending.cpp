#include "mpi_pending.h"

#include <thread>

#include "mpi_check.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

void MpiPending::wait() {
  if (requests_.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t spins = 0;; ++spins) {
    int done = 0;
    SHARDTUNE_MPI(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
    if (done != 0) break;
    // More ranks than cores: let the rank that has the data run.
    if (spins > 64) std::this_thread::yield();
    if (spins % 4096 == 4095 && std::chrono::steady_clock::now() - start > deadline_)
      fail(ErrorClass::kCommunication,
           "{} did not finish within {} s: another rank has stopped or is in another collective", what_,
           deadline_.count());
  }
  requests_.clear();
}

}  // namespace shardtune::comm
