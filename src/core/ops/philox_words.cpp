#include "philox_words.h"

#include "shardtune/core/philox.h"
#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
// GCC 12's own AVX-512 header reads a value that is not set, on purpose (bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace shardtune::ops {

void philox_words_plain(const std::array<std::uint32_t, 4>& base, std::uint64_t seed, std::int64_t groups,
                        std::uint32_t* words) {
  for (std::int64_t i = 0; i < groups; ++i) {
    const auto drawn = philox4x32({base[0], base[1], base[2], base[3] + static_cast<std::uint32_t>(i)}, seed);
    for (std::size_t w = 0; w < 4; ++w) words[4 * i + static_cast<std::int64_t>(w)] = drawn[w];
  }
}

#if defined(__x86_64__)
namespace {

// Each counter word lies in the lower half of a 64-bit lane. The upper half is left to be whatever it becomes: the multiply
// reads only the lower one, and the end takes only the lower one.
constexpr std::uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr int kXorOfThree = 0x96;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;

[[gnu::target("avx512f")]] void words_avx512(const std::array<std::uint32_t, 4>& base, std::uint64_t seed,
                                             std::int64_t groups, std::uint32_t* words) {
  const __m512i m0 = _mm512_set1_epi64(kMultiplier0), m1 = _mm512_set1_epi64(kMultiplier1);
  const __m512i ids = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), low = _mm512_set1_epi64(0xFFFFFFFF);
  const __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0),
                second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  for (std::int64_t i = 0; i < groups; i += 8) {
    __m512i c0 = _mm512_set1_epi64(base[0]), c1 = _mm512_set1_epi64(base[1]), c2 = _mm512_set1_epi64(base[2]);
    __m512i c3 = _mm512_add_epi64(_mm512_set1_epi64(base[3] + static_cast<std::uint32_t>(i)), ids);
    auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += kWeyl0, key1 += kWeyl1) {
      const __m512i p0 = _mm512_mul_epu32(c0, m0), p1 = _mm512_mul_epu32(c2, m1);
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, _mm512_set1_epi64(key0), kXorOfThree);
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, _mm512_set1_epi64(key1), kXorOfThree);
      c1 = p1;
      c3 = p0;
    }
    const __m512i front = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
    const __m512i back = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
    _mm512_storeu_si512(words + 4 * i, _mm512_permutex2var_epi64(front, first, back));
    _mm512_storeu_si512(words + 4 * i + 16, _mm512_permutex2var_epi64(front, second, back));
  }
}

[[gnu::target("avx2")]] void words_avx2(const std::array<std::uint32_t, 4>& base, std::uint64_t seed,
                                        std::int64_t groups, std::uint32_t* words) {
  const __m256i m0 = _mm256_set1_epi64x(kMultiplier0), m1 = _mm256_set1_epi64x(kMultiplier1);
  const __m256i ids = _mm256_set_epi64x(3, 2, 1, 0), low = _mm256_set1_epi64x(0xFFFFFFFF);
  for (std::int64_t i = 0; i < groups; i += 4) {
    __m256i c0 = _mm256_set1_epi64x(base[0]), c1 = _mm256_set1_epi64x(base[1]), c2 = _mm256_set1_epi64x(base[2]);
    __m256i c3 = _mm256_add_epi64(_mm256_set1_epi64x(base[3] + static_cast<std::uint32_t>(i)), ids);
    auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += kWeyl0, key1 += kWeyl1) {
      const __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(key0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(key1));
      c1 = p1;
      c3 = p0;
    }
    const __m256i front = _mm256_or_si256(_mm256_and_si256(c0, low), _mm256_slli_epi64(c1, 32));
    const __m256i back = _mm256_or_si256(_mm256_and_si256(c2, low), _mm256_slli_epi64(c3, 32));
    const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
    auto* to = reinterpret_cast<__m256i*>(words + 4 * i);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

}  // namespace
#endif

void philox_words(const std::array<std::uint32_t, 4>& base, std::uint64_t seed, std::int64_t groups,
                  std::uint32_t* words) {
#if defined(__x86_64__)
  if (simd::level() == simd::Level::kAvx512) return words_avx512(base, seed, groups, words);
  if (simd::level() == simd::Level::kAvx2) return words_avx2(base, seed, groups, words);
#endif
  philox_words_plain(base, seed, groups, words);
}

}  // namespace shardtune::ops
