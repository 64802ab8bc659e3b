#include "shardtune/comm/device.h"

#include <cstring>

#include "cuda_check.h"
#include "shardtune/comm/agree.h"
#include "shardtune/comm/device_choice.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {
namespace {

/// A machine without a driver or a GPU makes the count itself fail; that is an answer here, and its text the reason.
VisibleDevices visible_devices() {
  VisibleDevices visible;
  visible.place = place_of_process();
  const cudaError_t code = cudaGetDeviceCount(&visible.count);
  if (code == cudaSuccess) {
    visible.reason = "cudaGetDeviceCount() finds 0";
    return visible;
  }
  cudaGetLastError();
  visible.count = 0;
  visible.reason = cudaGetErrorString(code);
  return visible;
}

DeviceId device_id(int device) {
  cudaDeviceProp properties{};
  SHARDTUNE_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  DeviceId id{};
  static_assert(sizeof properties.uuid == sizeof id);
  std::memcpy(id.data(), &properties.uuid, sizeof id);
  return id;
}

OwnedStream make_stream(int priority) {
  cudaStream_t stream = nullptr;
  SHARDTUNE_CUDA_CALL(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  return OwnedStream(stream);
}

}  // namespace

int select_device(Communicator& world, DeviceSharing sharing) {
  const auto node = world.split_by_node();
  int device = -1;
  DeviceId own{};
  agree(world, [&] {
    device = choose_device(node->rank(), visible_devices());
    SHARDTUNE_CUDA_CALL(cudaSetDevice(device));
    own = device_id(device);
  });
  const std::vector<DeviceId> taken = node->gather_values(own);
  agree(world, [&] {
    if (sharing == DeviceSharing::kRefuse) refuse_shared_devices(taken, host_of_process());
  });
  return device;
}

void StreamDeleter::operator()(CUstream_st* stream) const noexcept { cudaStreamDestroy(stream); }

DeviceStreams make_device_streams(int device) {
  SHARDTUNE_CUDA_CALL(cudaSetDevice(device));
  int lowest = 0, highest = 0;
  SHARDTUNE_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  DeviceStreams streams;
  streams.device = device;
  streams.compute = make_stream(lowest);
  streams.gather = make_stream(highest);
  streams.reduce = make_stream(highest);
  return streams;
}

}  // namespace shardtune::comm
