#pragma once
#include <chrono>
#include <functional>
#include <string_view>
#include <vector>

#include "cuda_event.h"
#include "shardtune/comm/nccl.h"

namespace shardtune::comm {

class NcclHandle;

/// What all NCCL communicators of a rank share: the streams, the order of their work, and the watch over all of them.
class NcclDevice {
 public:
  NcclDevice(const DeviceStreams& streams, const NcclLimits& limits) : streams_(streams), limits_(limits) {}

  const DeviceStreams& streams() const { return streams_; }
  std::chrono::seconds deadline() const { return limits_.deadline; }

  /// Lets `issue` queue a transfer on `stream`, after the compute stream's work so far and after the transfer before, of
  /// whichever communicator: two that run at once can each hold what the other needs, on different ranks in a different order.
  /// Returns the event of its end.
  OwnedEvent run_on(cudaStream_t stream, const std::function<void()>& issue);

  /// Polls `done` and the state of every communicator. On an error or at the deadline: aborts all, throws
  /// Error(kCommunication) about `what`.
  void wait_until(const std::function<bool()>& done, std::string_view what);
  /// One look at the state of every communicator; throws as wait_until() does.
  void look(std::string_view what);
  /// Aborts all communicators, so that no kernel goes on waiting for another rank, and throws Error(kCommunication).
  [[noreturn]] void give_up(const std::string& message);
  /// Throws Error(kCommunication) when they were given up.
  void require_alive() const;

  void add(NcclHandle* handle) { handles_.push_back(handle); }
  void remove(NcclHandle* handle) noexcept { std::erase(handles_, handle); }

 private:
  const DeviceStreams& streams_;
  NcclLimits limits_;
  std::vector<NcclHandle*> handles_;
  OwnedEvent queued_;  ///< on the compute stream, where the newest transfer begins
  OwnedEvent last_;  ///< the end of the newest transfer
  bool given_up_ = false;
};

}  // namespace shardtune::comm
