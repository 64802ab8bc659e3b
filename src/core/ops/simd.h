#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

/// Row loops compiled for several instruction sets, chosen at run time: the program itself is built for any x86-64 processor.
/// All versions give the same bits, because the order of every sum is written out in lanes and products are never contracted
/// into fused multiply-adds (-ffp-contract=off).
namespace shardtune::ops::simd {

enum class Level { kPlain, kAvx2, kAvx512 };

inline Level level() {
#if defined(__x86_64__)
  static const Level best = __builtin_cpu_supports("avx512f") ? Level::kAvx512
                            : __builtin_cpu_supports("avx2")  ? Level::kAvx2
                                                              : Level::kPlain;
  return best;
#else
  return Level::kPlain;
#endif
}

#if defined(__x86_64__)
template <typename Kernel, typename... Args>
[[gnu::target("avx512f")]] void run_avx512(Args... args) {
  Kernel::run(args...);
}
template <typename Kernel, typename... Args>
[[gnu::target("avx2")]] void run_avx2(Args... args) {
  Kernel::run(args...);
}
#endif

/// Kernel::run(args...) under the best instruction set. `run` must be static and always inline, with plain arguments.
template <typename Kernel, typename... Args>
void run(Args... args) {
#if defined(__x86_64__)
  if (level() == Level::kAvx512) return run_avx512<Kernel>(args...);
  if (level() == Level::kAvx2) return run_avx2<Kernel>(args...);
#endif
  Kernel::run(args...);
}

using Floats = float __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));
constexpr std::int64_t kLanes = 8;

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
