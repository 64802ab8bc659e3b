#pragma once
#include <memory>

#include "shardtune/comm/communicator.h"

// Of the CUDA parts (shardtune_comm_nccl): only built with the CUDA toolkit and NCCL.
namespace shardtune::comm {

/// Whether ranks of a node may compute on the same device. NCCL itself refuses two ranks of a communicator on one device.
enum class DeviceSharing { kRefuse, kAllow };

/// Takes a device for this rank and makes it the calling thread's current one; returns its number among those this process
/// sees. Throws AgreedError on all ranks when one has no device, or shares one that it must not. Collective.
int select_device(Communicator& world, DeviceSharing sharing = DeviceSharing::kRefuse);

struct StreamDeleter {
  void operator()(CUstream_st* stream) const noexcept;
};
using OwnedStream = std::unique_ptr<CUstream_st, StreamDeleter>;

/// The streams of a rank. None waits for CUDA's default stream. The transfers have the higher priority: a short kernel that
/// other ranks wait for must not queue behind this rank's products.
struct DeviceStreams {
  int device = -1;
  OwnedStream compute;
  OwnedStream gather;
  OwnedStream reduce;  ///< exchanges, and the sums over what they brought
};

/// Streams on `device`, which becomes the calling thread's current one. Throws Error(kBadNode).
DeviceStreams make_device_streams(int device);

}  // namespace shardtune::comm
