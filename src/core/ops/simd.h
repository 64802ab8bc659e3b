#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "shardtune/core/simd_level.h"

/// Row loops compiled for several instruction sets (core/simd_level.h). All versions give the same bits, because the order of
/// every sum is written out in lanes and products are never contracted into fused multiply-adds (-ffp-contract=off).
namespace shardtune::ops::simd {

using ::shardtune::simd::best_level;
using ::shardtune::simd::level;
using ::shardtune::simd::Level;
using ::shardtune::simd::run;

using Floats = float __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));
constexpr std::int64_t kLanes = 8;
/// Twice as wide, for kernels with several sums: one register where there is AVX-512, two or four elsewhere.
using Wide = float __attribute__((vector_size(64)));
constexpr std::int64_t kWideLanes = 16;

/// By reference: a vector as a return value would change the ABI with the instruction set.
[[gnu::always_inline]] inline void load(const float* from, Wide& to) { std::memcpy(&to, from, sizeof to); }

/// The lanes added up by halves.
[[gnu::always_inline]] inline float sum_of_lanes(const Wide& lanes) {
  using Half = float __attribute__((vector_size(32)));
  using Quarter = float __attribute__((vector_size(16)));
  const Half half = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
  const Quarter quarter =
      __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/// bf16 as its bits: a type of its own, so that loops over it vectorise.
struct Bf16 {
  std::uint16_t bits;
};

[[gnu::always_inline]] inline float widen(float x) { return x; }
[[gnu::always_inline]] inline float widen(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Rounded to the nearest, ties to even; NaN stays NaN.
template <typename T>
[[gnu::always_inline]] inline T rounded(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return Bf16{static_cast<std::uint16_t>(nan ? 0x7FC0u : nearest)};
  }
}

/// e^x to about 2 ulp: Cody and Waite's reduction and the polynomial of Cephes' expf. Below e^-87.3 it is 0; above 88.7 it
/// stays at the largest value it can give. A plain formula, so that a loop over it vectorises; NaN stays NaN.
[[gnu::always_inline]] inline float exp(float x) {
  constexpr float kLowest = -87.3f, kHighest = 88.3f, kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to integer
  const float clamped = x > kHighest ? kHighest : x;
  const float shifted = clamped * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  const float value = p * std::bit_cast<float>(exponent);
  return x < kLowest ? 0.0f : value;
}

}  // namespace shardtune::ops::simd
