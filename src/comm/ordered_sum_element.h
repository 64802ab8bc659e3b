#pragma once
#include <cstdint>
#include <cstring>

// Plain C++ that a kernel and the host's tests compile alike.
#ifdef __CUDACC__
#define SHARDTUNE_HOST_DEVICE __host__ __device__
#else
#define SHARDTUNE_HOST_DEVICE
#endif

namespace shardtune::comm {

/// The bits of a bfloat16: the upper half of the float of the same value.
struct Bfloat16Bits {
  std::uint16_t bits;
};

SHARDTUNE_HOST_DEVICE inline double widened(double value) { return value; }
SHARDTUNE_HOST_DEVICE inline double widened(float value) { return static_cast<double>(value); }
SHARDTUNE_HOST_DEVICE inline double widened(Bfloat16Bits value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float wide = 0.0F;
  memcpy(&wide, &bits, sizeof wide);
  return static_cast<double>(wide);
}

/// `sum` plus one element of each rank's part, in rank order. `first` is the element in the part of rank 0, and the next rank's
/// lies `elements` further.
template <typename T>
SHARDTUNE_HOST_DEVICE double add_parts(double sum, const T* first, int ranks, std::int64_t elements) {
  for (int rank = 0; rank < ranks; ++rank) sum += widened(first[rank * elements]);
  return sum;
}

}  // namespace shardtune::comm
