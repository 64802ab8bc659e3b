#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

// Plain C++17 that kernels and the host compile alike.
#ifdef __CUDACC__
#define SHARDTUNE_QUANT_BOTH __host__ __device__ inline
#else
#define SHARDTUNE_QUANT_BOTH [[gnu::always_inline]] inline
#endif

namespace shardtune::quant {

/// Bits of the 16-bit types: types of their own, so that loops over them vectorise.
struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

SHARDTUNE_QUANT_BOTH std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
SHARDTUNE_QUANT_BOTH float float_of(std::uint32_t bits) {
  float x = 0.0F;
  memcpy(&x, &bits, sizeof x);
  return x;
}

SHARDTUNE_QUANT_BOTH float widened(float x) { return x; }
SHARDTUNE_QUANT_BOTH float widened(Bf16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }
SHARDTUNE_QUANT_BOTH float widened(Fp16 x) {
  const std::uint32_t magnitude = x.bits & 0x7FFFU;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + 0x38000000U;  // the exponent's bias 15 becomes 127
  // A subnormal's fraction, put behind a leading one that is then taken away: exact, and no subnormal float on the way.
  const std::uint32_t subnormal = bits_of(float_of(shifted + 0x38800000U) - 6.103515625e-05F);
  const std::uint32_t special = shifted | 0x7F800000U;
  const std::uint32_t finite = magnitude < 0x400U ? subnormal : normal;
  return float_of(sign | (magnitude >= 0x7C00U ? special : finite));
}

/// Rounded to the nearest of the type, ties to even; NaN stays NaN.
template <typename T>
SHARDTUNE_QUANT_BOTH T narrowed(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t nearest = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return Bf16{static_cast<std::uint16_t>(nan ? 0x7FC0U : nearest)};
  } else {
    static_assert(std::is_same_v<T, Fp16>);
    const std::uint32_t magnitude = bits_of(x) & 0x7FFFFFFFU;
    const std::uint32_t sign = (bits_of(x) >> 16) & 0x8000U;
    // The unit in the last place of [0.5, 1) is 2^-24, that of fp16's subnormals: the addition rounds.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t special = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
    const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
    return Fp16{static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000U ? special : finite))};
  }
}

}  // namespace shardtune::quant
