#include "kernels.h"

namespace shardtune::quant {
namespace {

/// Threads, and values of a block of states: one each.
constexpr int kBlock = 256;
/// Enough to fill any device; more blocks of states go round, so that a table is copied once for many of them.
constexpr std::int64_t kMaxGrid = 4096;

/// The table into shared memory: threads read different entries at the same time.
__device__ void copy_table(const EightBitTable& from, EightBitTable& to) {
  to.values[threadIdx.x] = from.values[threadIdx.x];
  if (threadIdx.x < 255) to.midpoints[threadIdx.x] = from.midpoints[threadIdx.x];
  __syncthreads();
}

__global__ void quantise_states(EightBitTable given, const float* values, std::int64_t count, float* absmax,
                                std::uint8_t* codes) {
  __shared__ EightBitTable table;
  __shared__ unsigned top;
  copy_table(given, table);
  for (std::int64_t block = blockIdx.x; block * kBlock < count; block += gridDim.x) {
    const std::int64_t i = block * kBlock + threadIdx.x;
    const float value = i < count ? values[i] : 0.0F;
    if (threadIdx.x == 0) top = 0;
    __syncthreads();
    // Without the sign, bits have the order of their values.
    atomicMax(&top, bits_of(value) & 0x7FFFFFFFU);
    __syncthreads();
    const float largest = float_of(top);
    if (threadIdx.x == 0) absmax[block] = largest;
    const unsigned code = code_at_grid_point(grid_point(value * (1.0F / largest)), table);
    if (i < count) codes[i] = static_cast<std::uint8_t>(largest == 0.0F ? 0U : code);
    __syncthreads();  // nobody may set top to 0 while another still reads it
  }
}

__global__ void dequantise_states(EightBitTable given, const std::uint8_t* codes, const float* absmax,
                                  std::int64_t count, float* values) {
  __shared__ EightBitTable table;
  copy_table(given, table);
  for (std::int64_t block = blockIdx.x; block * kBlock < count; block += gridDim.x) {
    const std::int64_t i = block * kBlock + threadIdx.x;
    if (i < count) values[i] = table.values[codes[i]] * absmax[block];
  }
}

unsigned grid_of(std::int64_t count) {
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  return static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid);
}

}  // namespace

cudaError_t launch_quantise_states(const EightBitTable& table, const float* values, std::int64_t count, float* absmax,
                                   std::uint8_t* codes, cudaStream_t stream) {
  quantise_states<<<grid_of(count), kBlock, 0, stream>>>(table, values, count, absmax, codes);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_states(const EightBitTable& table, const std::uint8_t* codes, const float* absmax,
                                     std::int64_t count, float* values, cudaStream_t stream) {
  dequantise_states<<<grid_of(count), kBlock, 0, stream>>>(table, codes, absmax, count, values);
  return cudaGetLastError();
}

}  // namespace shardtune::quant
