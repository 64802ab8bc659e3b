#include "kernels.h"

namespace shardtune::quant {
namespace {

constexpr int kThreads = 256;
constexpr int kHeader = 16;
/// Elements that a thread writes at a time: four packed bytes.
constexpr int kPart = 8;
constexpr int kMaxBlocks = 256;

/// Part of the results, so that they leave in stores of 16 bytes.
template <typename T>
struct alignas(16) Part {
  T values[kPart];
};

__device__ float float_at(const std::uint8_t* bytes) { return *reinterpret_cast<const float*>(bytes); }

__device__ std::int64_t elements_of(const DeviceRecords& records, std::int64_t record) {
  const std::int64_t left = records.elements - record * records.elements_per_record;
  return left < records.elements_per_record ? left : records.elements_per_record;
}

/// The absmax of the record's blocks, by all threads of the block.
__device__ void load_scales(const DeviceRecords& records, const EightBitTable& table, const std::uint8_t* record,
                            std::int64_t blocks, float* absmax) {
  const std::uint8_t* scales = record + kHeader;
  for (std::int64_t i = threadIdx.x; i < blocks; i += blockDim.x)
    absmax[i] = records.nested ? nested_scale(table.values[scales[i]], float_at(record), float_at(record + 4))
                               : float_at(scales + 4 * i);
}

/// A record per block of threads.
template <typename T>
__global__ void four_bit(DeviceRecords records, FourBitTable codes, EightBitTable scale_table, T* out) {
  __shared__ float absmax[kMaxBlocks];
  __shared__ float values[16];
  const std::int64_t index = blockIdx.x;
  const std::uint8_t* record = records.bytes + index * records.bytes_per_record;
  const std::int64_t count = elements_of(records, index);
  if (threadIdx.x < 16) values[threadIdx.x] = codes.values[threadIdx.x];
  load_scales(records, scale_table, record, (count + records.block_size - 1) / records.block_size, absmax);
  __syncthreads();
  const std::uint8_t* packed = record + records.packed_offset;
  T* to = out + index * records.elements_per_record;
  for (std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * kPart; first < count; first += kThreads * kPart) {
    // A part lies in one block of the matrix, and the packed bytes of a record are there to its end.
    const float scale = absmax[first / records.block_size];
    Part<T> part;
    for (int i = 0; i < kPart; ++i) part.values[i] = narrowed<T>(values[packed_code(packed, first + i)] * scale);
    if (first + kPart <= count) *reinterpret_cast<Part<T>*>(to + first) = part;
    else
      for (int i = 0; first + i < count; ++i) to[first + i] = part.values[i];
  }
}

/// A row per block of threads.
template <typename T>
__global__ void int8_rows(DeviceRecords records, T* out) {
  const std::int64_t row = blockIdx.x, columns = records.elements_per_record;
  const std::uint8_t* record = records.bytes + row * records.bytes_per_record;
  const float absmax = float_at(record);
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x)
    out[row * columns + i] = narrowed<T>(int8_value(static_cast<signed char>(record[kHeader + i]), absmax));
}

}  // namespace

template <typename T>
cudaError_t launch_four_bit(const DeviceRecords& records, const FourBitTable& codes, const EightBitTable& scales,
                            T* out, cudaStream_t stream) {
  four_bit<<<static_cast<unsigned>(records.count), kThreads, 0, stream>>>(records, codes, scales, out);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_int8(const DeviceRecords& records, T* out, cudaStream_t stream) {
  int8_rows<<<static_cast<unsigned>(records.count), kThreads, 0, stream>>>(records, out);
  return cudaGetLastError();
}

template cudaError_t launch_four_bit(const DeviceRecords&, const FourBitTable&, const EightBitTable&, float*,
                                     cudaStream_t);
template cudaError_t launch_four_bit(const DeviceRecords&, const FourBitTable&, const EightBitTable&, Bf16*,
                                     cudaStream_t);
template cudaError_t launch_four_bit(const DeviceRecords&, const FourBitTable&, const EightBitTable&, Fp16*,
                                     cudaStream_t);
template cudaError_t launch_int8(const DeviceRecords&, float*, cudaStream_t);
template cudaError_t launch_int8(const DeviceRecords&, Bf16*, cudaStream_t);
template cudaError_t launch_int8(const DeviceRecords&, Fp16*, cudaStream_t);

}  // namespace shardtune::quant
