#pragma once
#include <mpi.h>

namespace shardtune::comm {

/// Throws Error(kCommunication) with expression, place, rank, host and the library's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* expression, const char* file, int line);
#define SHARDTUNE_MPI(call) ::shardtune::comm::check_mpi((call), #call, __FILE__, __LINE__)

}  // namespace shardtune::comm
