#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

/// MPI_Init and MPI_Finalize as a scope. Construct once, before anything that communicates.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Ends the job on all ranks at once; for failures the others do not know about. Does not return.
  [[noreturn]] static void abort(int exit_code);
  static std::string host_name();
  /// Whether the launcher started this process as the first one; known from its environment variables, so also without a
  /// session. True without a launcher.
  static bool is_first_process();
  /// Processes that the launcher started, known in the same way. 1 without a launcher.
  static int launched_processes();
};

struct MpiLimits {
  /// Longest single message: counts of MPI 3 are int, so bytes at or over 2 GiB are cut into pieces.
  std::uint64_t max_message_bytes = 1ull << 30;
  /// A wait longer than this is an error instead of a hang.
  std::chrono::seconds deadline{1800};
};

/// All ranks of MPI_COMM_WORLD over host memory. Transfers are non-blocking sends and receives between all pairs.
std::unique_ptr<Communicator> make_mpi_communicator(const MpiLimits& limits = {});

}  // namespace shardtune::comm
