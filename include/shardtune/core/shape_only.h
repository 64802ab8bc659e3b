#pragma once
#include <ATen/core/Tensor.h>

/// Steps on shapes alone: every tensor lives on LibTorch's Meta device, has a shape and a type, and no data. Operators
/// without a Meta kernel have a twin in `ops` that allocates what the kernel would.
namespace shardtune::ops {

/// Whose kernels the twins stand for.
enum class Platform { kCpu, kCuda };

/// For the whole process; kCpu at the start. On kCpu a twin allocates what our CPU code and LibTorch's CPU kernels do on this
/// machine, on kCuda what the fused CUDA kernels do.
void set_planned_platform(Platform platform);
Platform planned_platform();

/// True for a tensor whose operators take the CPU's way: it lies there, or stands for one that does.
inline bool goes_cpu_way(const at::Tensor& x) {
  return x.is_cpu() || (x.is_meta() && planned_platform() == Platform::kCpu);
}

}  // namespace shardtune::ops
