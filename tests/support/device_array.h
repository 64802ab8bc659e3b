#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shardtune::testing {

/// Why a test that needs a device is to be skipped; empty when there is one.
inline std::string no_device() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return "";
  return std::string("no CUDA device: ") + cudaGetErrorString(code);
}

/// Device memory with the values of a vector, or zeroed.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, size * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0, size * sizeof(T)), cudaSuccess);
    settle();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    settle();
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  std::span<T> span() { return {static_cast<T*>(data_), size_}; }
  std::span<std::byte> bytes() { return std::as_writable_bytes(span()); }
  std::vector<T> values() const {
    std::vector<T> out(size_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  /// The streams of the tests do not wait for the default stream, where this may still be under way.
  static void settle() { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }

  void* data_ = nullptr;
  std::size_t size_;
};

}  // namespace shardtune::testing
