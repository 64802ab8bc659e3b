#pragma once
#include <nccl.h>

#include <string>

namespace shardtune::comm {

/// What NCCL says about `result`, with the newest of its own messages where it has one. `comm` may be null.
std::string nccl_text(ncclResult_t result, ncclComm_t comm);

/// Throws Error(kCommunication) with expression, place, rank, host and the library's text unless `result` is ncclSuccess. For
/// calls without a communicator; the others go through NcclHandle::check(), since they may end later.
void check_nccl(ncclResult_t result, const char* expression, const char* file, int line);
#define SHARDTUNE_NCCL_CALL(call) ::shardtune::comm::check_nccl((call), #call, __FILE__, __LINE__)

/// The text of a failed check.
std::string nccl_failure(ncclResult_t result, ncclComm_t comm, const char* expression, const char* file, int line);

}  // namespace shardtune::comm
