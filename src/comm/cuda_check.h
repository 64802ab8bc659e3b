#pragma once
#include <cuda_runtime_api.h>

#include <string>

namespace shardtune::comm {

/// Throws Error with expression, place, rank, host and the library's text unless `code` is cudaSuccess: kOutOfMemory when the
/// device is full, kBadNode otherwise.
void check_cuda(cudaError_t code, const char* expression, const char* file, int line);
#define SHARDTUNE_CUDA_CALL(call) ::shardtune::comm::check_cuda((call), #call, __FILE__, __LINE__)

/// "rank 3 (node17)"; the host alone outside of an MPI session.
std::string place_of_process();

/// The host of this process, with or without an MPI session.
std::string host_of_process();

}  // namespace shardtune::comm
