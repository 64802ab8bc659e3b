#include "nccl_check.h"

#include <string_view>

#include "cuda_check.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  std::string text = ncclGetErrorString(result);
  const char* last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
  return text;
}

std::string nccl_failure(ncclResult_t result, ncclComm_t comm, const char* expression, const char* file, int line) {
  return fmt::format("{} failed at {}:{} on {}: {}", expression, file, line, place_of_process(),
                     nccl_text(result, comm));
}

void check_nccl(ncclResult_t result, const char* expression, const char* file, int line) {
  if (result != ncclSuccess)
    throw Error(ErrorClass::kCommunication, nccl_failure(result, nullptr, expression, file, line));
}

}  // namespace shardtune::comm
