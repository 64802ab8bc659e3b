#pragma once

/// Loops compiled for several instruction sets, chosen at run time: the program itself is built for any x86-64 processor.
namespace shardtune::simd {

enum class Level { kPlain, kAvx2, kAvx512 };

inline Level best_level() {
#if defined(__x86_64__)
  // AVX-512 with its 16-bit and short-vector parts, without which loops over bf16 do not vectorise: every server processor
  // with AVX-512 has them.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return Level::kAvx512;
  // Every processor with AVX2 but a few of VIA has fused multiply-adds too, which the 8-bit optimizer asks for by name.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Level::kAvx2;
#endif
  return Level::kPlain;
}

/// The level in use. Tests lower it to hold the others against each other.
inline Level& level() {
  static Level chosen = best_level();
  return chosen;
}

#if defined(__x86_64__)
template <typename Kernel, typename... Args>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]] void run_avx512(Args... args) {
  Kernel::run(args...);
}
template <typename Kernel, typename... Args>
[[gnu::target("avx2,fma")]] void run_avx2(Args... args) {
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

}  // namespace shardtune::simd
