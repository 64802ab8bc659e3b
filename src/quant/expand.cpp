#include "expand.h"

#include <cstring>

#include "shardtune/core/error.h"
#include "shardtune/core/simd_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
// GCC 12's own AVX-512 header reads a value that is not set, on purpose (bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace shardtune::quant {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kPackedChunk = kExpandChunk / 2;

const char* block_table(const void* products, std::int64_t block, std::int64_t entry_bytes) {
  return static_cast<const char*>(products) + block * kCodes * entry_bytes;
}

/// A byte's high nibble and the byte itself become the two 16-bit indices of its elements. The permute takes five bits of an
/// index, and the table stands in the register twice, so that a fifth bit does not matter.
template <bool kStream>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void expand16_avx512(const void* products, const std::uint8_t* packed,
                                                                  std::int64_t chunks, std::int64_t chunks_per_block,
                                                                  std::uint16_t* out) {
  for (std::int64_t chunk = 0; chunk < chunks;) {
    const __m512i table = _mm512_broadcast_i64x4(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block_table(products, chunk / chunks_per_block, 2))));
    const std::int64_t end = chunk + chunks_per_block < chunks ? chunk + chunks_per_block : chunks;
    for (; chunk < end; ++chunk, packed += kPackedChunk, out += kExpandChunk) {
      for (std::int64_t half = 0; half < 2; ++half) {
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed) + half));
        const __m512i index = _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
        const __m512i values = _mm512_permutexvar_epi16(index, table);
        if constexpr (kStream) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + 32 * half), values);
        else _mm512_storeu_si512(out + 32 * half, values);
      }
    }
  }
}

/// The same with 32-bit indices, of which the permute takes four bits.
template <bool kStream>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void expand32_avx512(const void* products, const std::uint8_t* packed,
                                                                  std::int64_t chunks, std::int64_t chunks_per_block,
                                                                  float* out) {
  for (std::int64_t chunk = 0; chunk < chunks;) {
    const __m512 table = _mm512_loadu_ps(block_table(products, chunk / chunks_per_block, 4));
    const std::int64_t end = chunk + chunks_per_block < chunks ? chunk + chunks_per_block : chunks;
    for (; chunk < end; ++chunk, packed += kPackedChunk, out += kExpandChunk) {
      for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
        const __m512i bytes =
            _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed + 8 * quarter)));
        const __m512i index = _mm512_or_si512(_mm512_srli_epi64(bytes, 4), _mm512_slli_epi64(bytes, 32));
        const __m512 values = _mm512_permutexvar_ps(index, table);
        if constexpr (kStream) _mm512_stream_ps(out + 16 * quarter, values);
        else _mm512_storeu_ps(out + 16 * quarter, values);
      }
    }
  }
}

/// The byte shuffle looks up 16 entries of one byte: once for the low bytes of the products, once for the high ones.
template <bool kStream>
[[gnu::target("avx2")]] void expand16_avx2(const void* products, const std::uint8_t* packed, std::int64_t chunks,
                                           std::int64_t chunks_per_block, std::uint16_t* out) {
  const __m128i low_byte = _mm_set1_epi16(0xFF);
  const __m256i even_nibbles = _mm256_set1_epi16(0x000F), odd_nibbles = _mm256_set1_epi16(0x0F00);
  for (std::int64_t chunk = 0; chunk < chunks;) {
    const auto* table = reinterpret_cast<const __m128i*>(block_table(products, chunk / chunks_per_block, 2));
    const __m128i front = _mm_loadu_si128(table), back = _mm_loadu_si128(table + 1);
    const __m256i low_bytes =
        _mm256_broadcastsi128_si256(_mm_packus_epi16(_mm_and_si128(front, low_byte), _mm_and_si128(back, low_byte)));
    const __m256i high_bytes =
        _mm256_broadcastsi128_si256(_mm_packus_epi16(_mm_srli_epi16(front, 8), _mm_srli_epi16(back, 8)));
    const std::int64_t end = chunk + chunks_per_block < chunks ? chunk + chunks_per_block : chunks;
    for (; chunk < end; ++chunk, packed += kPackedChunk, out += kExpandChunk) {
      for (std::int64_t half = 0; half < 2; ++half) {
        const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed) + half));
        const __m256i index = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(words, 4), even_nibbles),
                                              _mm256_and_si256(_mm256_slli_epi16(words, 8), odd_nibbles));
        const __m256i low = _mm256_shuffle_epi8(low_bytes, index), high = _mm256_shuffle_epi8(high_bytes, index);
        const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
        auto* to = reinterpret_cast<__m256i*>(out + 32 * half);
        const __m256i first = _mm256_permute2x128_si256(a, b, 0x20), second = _mm256_permute2x128_si256(a, b, 0x31);
        if constexpr (kStream) {
          _mm256_stream_si256(to, first);
          _mm256_stream_si256(to + 1, second);
        } else {
          _mm256_storeu_si256(to, first);
          _mm256_storeu_si256(to + 1, second);
        }
      }
    }
  }
}

/// The permute looks up 8 entries: both halves of the table, and the code's highest bit chooses.
template <bool kStream>
[[gnu::target("avx2")]] void expand32_avx2(const void* products, const std::uint8_t* packed, std::int64_t chunks,
                                           std::int64_t chunks_per_block, float* out) {
  const __m256i shifts = _mm256_set_epi32(24, 28, 16, 20, 8, 12, 0, 4);  // element 0 is the first byte's high nibble
  for (std::int64_t chunk = 0; chunk < chunks;) {
    const auto* table = reinterpret_cast<const float*>(block_table(products, chunk / chunks_per_block, 4));
    const __m256 front = _mm256_loadu_ps(table), back = _mm256_loadu_ps(table + 8);
    const std::int64_t end = chunk + chunks_per_block < chunks ? chunk + chunks_per_block : chunks;
    for (; chunk < end; ++chunk, packed += kPackedChunk, out += kExpandChunk) {
      for (std::int64_t eighth = 0; eighth < 8; ++eighth) {
        std::int32_t bytes = 0;
        std::memcpy(&bytes, packed + 4 * eighth, sizeof bytes);
        const __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(bytes), shifts);
        const __m256 choice = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
        const __m256 values =
            _mm256_blendv_ps(_mm256_permutevar8x32_ps(front, index), _mm256_permutevar8x32_ps(back, index), choice);
        if constexpr (kStream) _mm256_stream_ps(out + 8 * eighth, values);
        else _mm256_storeu_ps(out + 8 * eighth, values);
      }
    }
  }
}

template <bool kStream>
void expand16_by_level(const void* products, const std::uint8_t* packed, std::int64_t chunks,
                       std::int64_t chunks_per_block, std::uint16_t* out) {
  if (simd::level() == simd::Level::kAvx512) expand16_avx512<kStream>(products, packed, chunks, chunks_per_block, out);
  else expand16_avx2<kStream>(products, packed, chunks, chunks_per_block, out);
}

template <bool kStream>
void expand32_by_level(const void* products, const std::uint8_t* packed, std::int64_t chunks,
                       std::int64_t chunks_per_block, float* out) {
  if (simd::level() == simd::Level::kAvx512) expand32_avx512<kStream>(products, packed, chunks, chunks_per_block, out);
  else expand32_avx2<kStream>(products, packed, chunks, chunks_per_block, out);
}

}  // namespace

void expand(std::size_t entry_bytes, Stores stores, const void* products, const void* packed, std::int64_t chunks,
            std::int64_t chunks_per_block, void* out) {
  const auto* bytes = static_cast<const std::uint8_t*>(packed);
  const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  const bool stream = stores == Stores::kPastTheCaches && aligned;
  if (entry_bytes == 2) {
    auto* to = static_cast<std::uint16_t*>(out);
    if (stream) expand16_by_level<true>(products, bytes, chunks, chunks_per_block, to);
    else expand16_by_level<false>(products, bytes, chunks, chunks_per_block, to);
  } else {
    auto* to = static_cast<float*>(out);
    if (stream) expand32_by_level<true>(products, bytes, chunks, chunks_per_block, to);
    else expand32_by_level<false>(products, bytes, chunks, chunks_per_block, to);
  }
}

void store_past_the_caches(const void* from, std::size_t bytes, void* out) {
  const std::size_t lines = reinterpret_cast<std::uintptr_t>(out) % 64 == 0 ? bytes / 64 : 0;
  const auto* read = static_cast<const __m128i*>(from);
  auto* write = static_cast<__m128i*>(out);
  for (std::size_t i = 0; i < 4 * lines; ++i) _mm_stream_si128(write + i, _mm_loadu_si128(read + i));
  std::memcpy(write + 4 * lines, read + 4 * lines, bytes - 64 * lines);
}

void finish_stores() { _mm_sfence(); }
#else
void store_past_the_caches(const void* from, std::size_t bytes, void* out) { std::memcpy(out, from, bytes); }
void expand(std::size_t, Stores, const void*, const void*, std::int64_t, std::int64_t, void*) {
  SHARDTUNE_CHECK(false, "there are no vector levels on this processor");
}
void finish_stores() {}
#endif

}  // namespace shardtune::quant
