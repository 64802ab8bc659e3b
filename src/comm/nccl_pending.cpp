#include "nccl_pending.h"

namespace shardtune::comm {

void NcclPending::wait() {
  if (!end_) return;
  device_->wait_until([this] { return is_done(cudaEventQuery(end_.get())); }, what_);
  end_.reset();
}

void NcclPending::wait_on(StreamRef stream) {
  if (stream.stream == nullptr) return wait();
  device_->require_alive();
  // The host goes on without a deadline of its own: what has already failed is told here, the rest by the next wait.
  device_->look(what_);
  if (end_) SHARDTUNE_CUDA_CALL(cudaStreamWaitEvent(stream.stream, end_.get(), 0));
}

}  // namespace shardtune::comm
