#pragma once
#include <cuda_runtime_api.h>

#include "rules.h"

// What the host code and nvcc share: C++17, no headers of the module's interface.
namespace shardtune::quant {

/// Records in device memory and how they lie.
struct DeviceRecords {
  const std::uint8_t* bytes;
  std::int64_t count;
  std::int64_t bytes_per_record;
  std::int64_t packed_offset;
  std::int64_t elements_per_record;
  std::int64_t elements;  ///< of all of them
  std::int64_t block_size;  ///< 4-bit
  bool nested;  ///< 4-bit: double quantisation
};

/// Queue the work and return what CUDA says about the launch; nothing may be empty. T: float, Bf16, Fp16. `out` and the
/// records lie at multiples of 16 bytes.
template <typename T>
cudaError_t launch_four_bit(const DeviceRecords& records, const FourBitTable& codes, const EightBitTable& scales,
                            T* out, cudaStream_t stream);
template <typename T>
cudaError_t launch_int8(const DeviceRecords& records, T* out, cudaStream_t stream);

/// Blocks of 256.
cudaError_t launch_quantise_states(const EightBitTable& table, const float* values, std::int64_t count, float* absmax,
                                   std::uint8_t* codes, cudaStream_t stream);
cudaError_t launch_dequantise_states(const EightBitTable& table, const std::uint8_t* codes, const float* absmax,
                                     std::int64_t count, float* values, cudaStream_t stream);

}  // namespace shardtune::quant
