#include "int8_row.h"

#include <cmath>

#include "rules.h"
#include "shardtune/core/simd_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
// GCC 12's own AVX-512 header reads a value that is not set, on purpose (bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define SHARDTUNE_AVX512 "avx512f,avx512bw,avx512vl,avx512dq"
#endif

namespace shardtune::quant {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kStep = 32;
/// 127 of these are a normal number apart from 0 and the smallest product is one too.
constexpr float kSmallestAbsmax16 = 1e-35F;

/// 16 products, as int8_value() makes them: two multiplications, each rounded.
[[gnu::target(SHARDTUNE_AVX512), gnu::always_inline]] inline __m512 products(const std::int8_t* codes, __m512 absmax) {
  const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(wide), absmax), _mm512_set1_ps(int8_value(1, 1.0F)));
}

template <bool kStream>
[[gnu::target(SHARDTUNE_AVX512), gnu::always_inline]] inline void store(void* out, __m512i values) {
  if constexpr (kStream) _mm512_stream_si512(static_cast<__m512i*>(out), values);
  else _mm512_storeu_si512(out, values);
}

/// The nearest bf16 in the upper half, ties to even.
[[gnu::target(SHARDTUNE_AVX512), gnu::always_inline]] inline __m512i rounded(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
}

template <bool kStream>
[[gnu::target(SHARDTUNE_AVX512)]] void row_to_bf16(const std::int8_t* codes, std::int64_t count, float absmax,
                                                   Bf16* out) {
  const __m512 scale = _mm512_set1_ps(absmax);
  // The odd 16-bit words of two registers: word i is the upper half of element i.
  const __m512i counting = _mm512_cvtepu8_epi16(
      _mm256_set_epi64x(0x1F1E1D1C1B1A1918, 0x1716151413121110, 0x0F0E0D0C0B0A0908, 0x0706050403020100));
  const __m512i upper = _mm512_add_epi16(_mm512_slli_epi16(counting, 1), _mm512_set1_epi16(1));
  for (std::int64_t i = 0; i < count; i += kStep)
    store<kStream>(out + i, _mm512_permutex2var_epi16(rounded(products(codes + i, scale)), upper,
                                                      rounded(products(codes + i + 16, scale))));
}

template <bool kStream>
[[gnu::target(SHARDTUNE_AVX512 ",avx512bf16")]] void row_to_bf16_native(const std::int8_t* codes, std::int64_t count,
                                                                        float absmax, Bf16* out) {
  const __m512 scale = _mm512_set1_ps(absmax);
  for (std::int64_t i = 0; i < count; i += kStep)
    store<kStream>(out + i, reinterpret_cast<__m512i>(
                                _mm512_cvtne2ps_pbh(products(codes + i + 16, scale), products(codes + i, scale))));
}

template <bool kStream>
[[gnu::target(SHARDTUNE_AVX512)]] void row_to_fp32(const std::int8_t* codes, std::int64_t count, float absmax,
                                                   float* out) {
  const __m512 scale = _mm512_set1_ps(absmax);
  for (std::int64_t i = 0; i < count; i += 16) store<kStream>(out + i, _mm512_castps_si512(products(codes + i, scale)));
}

/// 8 products.
[[gnu::target("avx2"), gnu::always_inline]] inline __m256 products8(const std::int8_t* codes, __m256 absmax) {
  const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(wide), absmax), _mm256_set1_ps(int8_value(1, 1.0F)));
}

template <bool kStream>
[[gnu::target("avx2"), gnu::always_inline]] inline void store8(void* out, __m256i values) {
  if constexpr (kStream) _mm256_stream_si256(static_cast<__m256i*>(out), values);
  else _mm256_storeu_si256(static_cast<__m256i*>(out), values);
}

/// The nearest bf16, ties to even, in the lower half.
[[gnu::target("avx2"), gnu::always_inline]] inline __m256i rounded8(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}

template <bool kStream>
[[gnu::target("avx2")]] void row_to_bf16_avx2(const std::int8_t* codes, std::int64_t count, float absmax, Bf16* out) {
  const __m256 scale = _mm256_set1_ps(absmax);
  for (std::int64_t i = 0; i < count; i += 16) {
    // Packing takes four words of each half in turn: the quarters are then in the order 0, 2, 1, 3.
    const __m256i packed =
        _mm256_packus_epi32(rounded8(products8(codes + i, scale)), rounded8(products8(codes + i + 8, scale)));
    store8<kStream>(out + i, _mm256_permute4x64_epi64(packed, 0xD8));
  }
}

template <bool kStream>
[[gnu::target("avx2")]] void row_to_fp32_avx2(const std::int8_t* codes, std::int64_t count, float absmax, float* out) {
  const __m256 scale = _mm256_set1_ps(absmax);
  for (std::int64_t i = 0; i < count; i += 8)
    store8<kStream>(out + i, _mm256_castps_si256(products8(codes + i, scale)));
}

template <bool kStream>
void run_row(const std::int8_t* codes, std::int64_t count, float absmax, Bf16* out) {
  if (simd::level() == simd::Level::kAvx2) row_to_bf16_avx2<kStream>(codes, count, absmax, out);
  else if (int8_rows_round_in_hardware()) row_to_bf16_native<kStream>(codes, count, absmax, out);
  else row_to_bf16<kStream>(codes, count, absmax, out);
}

template <bool kStream>
void run_row(const std::int8_t* codes, std::int64_t count, float absmax, float* out) {
  if (simd::level() == simd::Level::kAvx2) row_to_fp32_avx2<kStream>(codes, count, absmax, out);
  else row_to_fp32<kStream>(codes, count, absmax, out);
}

template <typename T>
std::int64_t run_whole_steps(const std::int8_t* codes, std::int64_t count, float absmax, Stores stores, T* out) {
  if (simd::level() == simd::Level::kPlain || !std::isfinite(absmax) || absmax < kSmallestAbsmax16) return 0;
  const bool stream = stores == Stores::kPastTheCaches && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  const std::int64_t whole = count / kStep * kStep;
  if (stream) run_row<true>(codes, whole, absmax, out);
  else run_row<false>(codes, whole, absmax, out);
  return whole;
}

}  // namespace

bool& int8_rows_round_in_hardware() {
  static bool native = __builtin_cpu_supports("avx512bf16");
  return native;
}

std::int64_t int8_row(const std::int8_t* codes, std::int64_t count, float absmax, Stores stores, Bf16* out) {
  return run_whole_steps(codes, count, absmax, stores, out);
}

std::int64_t int8_row(const std::int8_t* codes, std::int64_t count, float absmax, Stores stores, float* out) {
  return run_whole_steps(codes, count, absmax, stores, out);
}
#else
bool& int8_rows_round_in_hardware() {
  static bool native = false;
  return native;
}
std::int64_t int8_row(const std::int8_t*, std::int64_t, float, Stores, Bf16*) { return 0; }
std::int64_t int8_row(const std::int8_t*, std::int64_t, float, Stores, float*) { return 0; }
#endif

}  // namespace shardtune::quant
