#include "nccl_handle.h"

#include <exception>
#include <thread>
#include <utility>

namespace shardtune::comm {

void NcclHandle::connect(const ncclUniqueId& id, int rank, int size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  SHARDTUNE_NCCL_CHECK(*this, ncclCommInitRankConfig(&comm_, size, id, rank, &config));
}

ncclResult_t NcclHandle::state() const {
  if (comm_ == nullptr) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  return asked == ncclSuccess ? state : asked;
}

void NcclHandle::check(ncclResult_t result, const char* expression, const char* file, int line) {
  if (result == ncclInProgress) device_->wait_until([this] { return state() == ncclSuccess; }, expression);
  else if (result != ncclSuccess) device_->give_up(nccl_failure(result, comm_, expression, file, line));
}

void NcclHandle::abort() noexcept {
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

NcclHandle::~NcclHandle() {
  device_->remove(this);
  if (comm_ == nullptr) return;
  const auto start = std::chrono::steady_clock::now();
  const bool failing = std::uncaught_exceptions() > 0;
  ncclResult_t finalised = failing ? ncclRemoteError : ncclCommFinalize(comm_);
  while (finalised == ncclInProgress && std::chrono::steady_clock::now() - start < device_->deadline()) {
    std::this_thread::yield();
    finalised = state();
  }
  if (finalised == ncclSuccess) ncclCommDestroy(comm_);
  else abort();
}

}  // namespace shardtune::comm
