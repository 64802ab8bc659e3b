#pragma once
#include <nccl.h>

#include <memory>

#include "nccl_check.h"
#include "nccl_device.h"

namespace shardtune::comm {

/// One ncclComm_t. It is non-blocking: a call may return before its work is done, or even queued, so each one goes through
/// check(), which waits with a deadline.
class NcclHandle {
 public:
  explicit NcclHandle(std::shared_ptr<NcclDevice> device) : device_(std::move(device)) { device_->add(this); }
  /// Finalises, or aborts while an error is on its way: the other ranks may be elsewhere then.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  /// Joins the ranks that hold the same id. Collective.
  void connect(const ncclUniqueId& id, int rank, int size);
  /// Null before connect() and after abort().
  ncclComm_t get() const { return comm_; }
  /// What the library thinks of its own work.
  ncclResult_t state() const;
  /// Returns when the call that gave `result` has been taken up. Throws Error(kCommunication), after aborting all
  /// communicators, with expression, place, rank, host and the library's text.
  void check(ncclResult_t result, const char* expression, const char* file, int line);
  void abort() noexcept;

 private:
  std::shared_ptr<NcclDevice> device_;
  ncclComm_t comm_ = nullptr;
};
#define SHARDTUNE_NCCL_CHECK(handle, call) (handle).check((call), #call, __FILE__, __LINE__)

}  // namespace shardtune::comm
