#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace shardtune::comm {

/// The devices a rank sees, and what to tell a user who has none.
struct VisibleDevices {
  int count = 0;
  std::string place;  ///< "rank 3 (node17)"
  std::string reason;  ///< the library's text when it counts none
};

/// What tells devices apart, also between processes that see different ones: cudaDeviceProp::uuid.
using DeviceId = std::array<std::byte, 16>;

/// Which of the devices it sees the rank `node_rank` of a node takes: they are dealt out in turn. Error(kBadNode) when there is
/// none.
int choose_device(int node_rank, const VisibleDevices& visible);

/// Error(kBadNode) when two ranks of a node took the same device. `taken` is in the order of the node's ranks; counting ranks
/// and devices instead would refuse a launcher that shows each rank one device of its own.
void refuse_shared_devices(std::span<const DeviceId> taken, const std::string& host);

}  // namespace shardtune::comm
