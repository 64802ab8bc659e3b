#include "shardtune/comm/device_choice.h"

#include <algorithm>
#include <set>

#include "shardtune/core/error.h"

namespace shardtune::comm {

int choose_device(int node_rank, const VisibleDevices& visible) {
  SHARDTUNE_CHECK(node_rank >= 0, "rank {} of the node", node_rank);
  if (visible.count < 1)
    fail(ErrorClass::kBadNode,
         "no CUDA device on {}: {}; start on a machine with a GPU and its driver, and look at CUDA_VISIBLE_DEVICES",
         visible.place, visible.reason);
  return node_rank % visible.count;
}

void refuse_shared_devices(std::span<const DeviceId> taken, const std::string& host) {
  const std::size_t devices = std::set<DeviceId>(taken.begin(), taken.end()).size();
  if (devices == taken.size()) return;
  for (std::size_t rank = 1; rank < taken.size(); ++rank) {
    const auto* const first = std::find(taken.data(), taken.data() + rank, taken[rank]);
    if (first == taken.data() + rank) continue;
    fail(ErrorClass::kBadNode,
         "{} ranks run on {} and see {} CUDA device{} between them: rank {} of the node would share one with rank {}; "
         "start one rank per device, or allow ranks to share",
         taken.size(), host, devices, devices == 1 ? "" : "s", rank, first - taken.data());
  }
}

}  // namespace shardtune::comm
