#pragma once
#include <cuda_runtime_api.h>

#include <memory>

#include "cuda_check.h"

namespace shardtune::comm {

struct EventDeleter {
  void operator()(CUevent_st* event) const noexcept { cudaEventDestroy(event); }
};
/// CUDA keeps a destroyed event for the streams that wait for it.
using OwnedEvent = std::unique_ptr<CUevent_st, EventDeleter>;

/// An event on the current device, without time stamps.
inline OwnedEvent make_event() {
  cudaEvent_t event = nullptr;
  SHARDTUNE_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return OwnedEvent(event);
}

/// Whether a query of an event or a stream says that its work is done; "not yet" is no error.
inline bool is_done(cudaError_t query) {
  if (query == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  SHARDTUNE_CUDA_CALL(query);
  return true;
}

}  // namespace shardtune::comm
