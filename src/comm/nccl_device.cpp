#include "nccl_device.h"

#include <thread>

#include "nccl_handle.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

OwnedEvent NcclDevice::run_on(cudaStream_t stream, const std::function<void()>& issue) {
  require_alive();
  if (!queued_) queued_ = make_event();
  SHARDTUNE_CUDA_CALL(cudaEventRecord(queued_.get(), streams_.compute.get()));
  SHARDTUNE_CUDA_CALL(cudaStreamWaitEvent(stream, queued_.get(), 0));
  if (last_) SHARDTUNE_CUDA_CALL(cudaStreamWaitEvent(stream, last_.get(), 0));
  else last_ = make_event();
  issue();
  OwnedEvent end = make_event();
  SHARDTUNE_CUDA_CALL(cudaEventRecord(end.get(), stream));
  SHARDTUNE_CUDA_CALL(cudaEventRecord(last_.get(), stream));
  return end;
}

void NcclDevice::wait_until(const std::function<bool()>& done, std::string_view what) {
  require_alive();
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t spins = 0; !done(); ++spins) {
    look(what);
    // More ranks than cores: let the rank that has the data run.
    if (spins > 64) std::this_thread::yield();
    if (spins % 256 == 255 && std::chrono::steady_clock::now() - start > limits_.deadline)
      give_up(fmt::format("{} did not finish within {} s on {}: another rank has stopped or is in another collective",
                          what, limits_.deadline.count(), place_of_process()));
  }
}

void NcclDevice::look(std::string_view what) {
  for (const NcclHandle* handle : handles_)
    if (const ncclResult_t state = handle->state(); state != ncclSuccess && state != ncclInProgress)
      give_up(fmt::format("{} failed on {}: {}", what, place_of_process(), nccl_text(state, handle->get())));
}

void NcclDevice::give_up(const std::string& message) {
  given_up_ = true;
  for (NcclHandle* handle : handles_) handle->abort();
  throw Error(ErrorClass::kCommunication, message);
}

void NcclDevice::require_alive() const {
  if (given_up_) fail(ErrorClass::kCommunication, "NCCL was given up on {} after an earlier error", place_of_process());
}

}  // namespace shardtune::comm
