#pragma once
#include <chrono>
#include <memory>

#include "shardtune/comm/communicator.h"
#include "shardtune/comm/device.h"

// Of the CUDA parts (shardtune_comm_nccl): only built with the CUDA toolkit and NCCL.
namespace shardtune::comm {

struct NcclLimits {
  /// A wait longer than this is an error instead of a hang.
  std::chrono::seconds deadline{1800};
};

/// Gathers and exchanges of device memory over NCCL: their spans hold device pointers. Everything else (broadcast, barrier,
/// gather_control, allocate_shared) is host memory and goes over the communicator underneath.
///
/// A transfer begins when the work queued on the compute stream so far is done, and runs on a stream of its own. All transfers
/// of a communicator and of those split from it run one after the other, in the order of the calls. When NCCL reports an error
/// or a deadline passes, all of them are aborted, this and every later call throws Error(kCommunication), and the job should
/// end. One thread at a time.
class NcclCommunicator : public Communicator {
 public:
  /// Connects the ranks now instead of in the first transfer; a group that only passes control messages needs no connection and
  /// no device memory for it. Collective.
  virtual void connect() = 0;
  /// Blocks until the work queued on `stream` is done, with the deadline and the watch over NCCL that
  /// cudaStreamSynchronize() lacks. Not collective.
  virtual void synchronize(StreamRef stream) = 0;
  /// The communicator underneath, for transfers of host memory.
  virtual Communicator& host() = 0;
};

/// The ranks of `host` over their devices. `streams` must outlive it, what is split from it and every Pending. Nothing is
/// connected yet.
std::unique_ptr<NcclCommunicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                         const DeviceStreams& streams, const NcclLimits& limits = {});

}  // namespace shardtune::comm
