#pragma once
#include <cstdint>

#include "dropout_rows.h"
#include "simd.h"

/// Products with a matrix of few rows, [rank, width], as loops over one long row: a general matrix product spends most of its
/// time on preparing operands when one dimension is 8. The order of every sum is fixed.
namespace shardtune::ops::low_rank {

/// A row in fp32, masked when there are words.
struct WidenRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* from, const std::uint32_t* words, DropoutRule rule, float* to,
                                                std::int64_t width) {
    if (words == nullptr)
      for (std::int64_t i = 0; i < width; ++i) to[i] = simd::widen(from[i]);
    else
      for (std::int64_t i = 0; i < width; ++i) to[i] = rule.apply(words[i], simd::widen(from[i]));
  }
};

/// to[i] += the masked sum, rounded once.
struct AddMaskedRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const float* from, const std::uint32_t* words, DropoutRule rule, T* to,
                                                std::int64_t width) {
    if (words == nullptr)
      for (std::int64_t i = 0; i < width; ++i) to[i] = simd::rounded<T>(simd::widen(to[i]) + from[i]);
    else
      for (std::int64_t i = 0; i < width; ++i)
        to[i] = simd::rounded<T>(simd::widen(to[i]) + rule.apply(words[i], from[i]));
  }
};

/// to[i] = to[i] * scale[i] + from[i], rounded once.
struct AddToScaledRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const float* from, const float* scale, T* to, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) to[i] = simd::rounded<T>(simd::widen(to[i]) * scale[i] + from[i]);
  }
};

constexpr std::int64_t kBlock = 4;  ///< matrix rows that one sweep over the long row serves

template <std::int64_t B>
[[gnu::always_inline]] inline void dots_block(const float* row, const float* matrix, std::int64_t width, float* out) {
  simd::Wide sums[B] = {};
  std::int64_t i = 0;
  for (; i + simd::kWideLanes <= width; i += simd::kWideLanes) {
    simd::Wide x, y;
    simd::load(row + i, x);
    for (std::int64_t b = 0; b < B; ++b) {
      simd::load(matrix + b * width + i, y);
      sums[b] += x * y;
    }
  }
  for (std::int64_t b = 0; b < B; ++b) {
    float sum = simd::sum_of_lanes(sums[b]);
    for (std::int64_t rest = i; rest < width; ++rest) sum += row[rest] * matrix[b * width + rest];
    out[b] = sum;
  }
}

/// out[k] = sum over i of row[i] * matrix[k, i].
[[gnu::always_inline]] inline void dots(const float* row, const float* matrix, std::int64_t rank, std::int64_t width,
                                        float* out) {
  std::int64_t k = 0;
  for (; k + kBlock <= rank; k += kBlock) dots_block<kBlock>(row, matrix + k * width, width, out + k);
  for (; k < rank; ++k) dots_block<1>(row, matrix + k * width, width, out + k);
}

/// sum[i] += sum over k of factors[k] * matrix[k, i].
[[gnu::always_inline]] inline void add_combination(const float* factors, const float* __restrict matrix,
                                                   std::int64_t rank, std::int64_t width, float* __restrict sum) {
  std::int64_t k = 0;
  for (; k + kBlock <= rank; k += kBlock, matrix += kBlock * width) {
    const float f0 = factors[k], f1 = factors[k + 1], f2 = factors[k + 2], f3 = factors[k + 3];
    for (std::int64_t i = 0; i < width; ++i)
      sum[i] += (f0 * matrix[i] + f1 * matrix[width + i]) + (f2 * matrix[2 * width + i] + f3 * matrix[3 * width + i]);
  }
  for (; k < rank; ++k, matrix += width)
    for (std::int64_t i = 0; i < width; ++i) sum[i] += factors[k] * matrix[i];
}

template <std::int64_t B>
[[gnu::always_inline]] inline void add_outer_block(const float* factors, std::int64_t stride, const float* rows,
                                                   std::int64_t count, std::int64_t width, float* sums) {
  std::int64_t i = 0;
  for (; i + simd::kWideLanes <= width; i += simd::kWideLanes) {
    simd::Wide lanes[B], x;
    for (std::int64_t b = 0; b < B; ++b) simd::load(sums + b * width + i, lanes[b]);
    for (std::int64_t n = 0; n < count; ++n) {
      simd::load(rows + n * width + i, x);
      for (std::int64_t b = 0; b < B; ++b) lanes[b] += factors[n * stride + b] * x;
    }
    for (std::int64_t b = 0; b < B; ++b) std::memcpy(sums + b * width + i, &lanes[b], sizeof lanes[b]);
  }
  for (; i < width; ++i)
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t n = 0; n < count; ++n) sums[b * width + i] += factors[n * stride + b] * rows[n * width + i];
}

/// sums[k, i] += sum over n < count of factors[n, k] * rows[n, i].
[[gnu::always_inline]] inline void add_outer(const float* factors, const float* rows, std::int64_t count,
                                             std::int64_t rank, std::int64_t width, float* sums) {
  std::int64_t k = 0;
  for (; k + kBlock <= rank; k += kBlock)
    add_outer_block<kBlock>(factors + k, rank, rows, count, width, sums + k * width);
  for (; k < rank; ++k) add_outer_block<1>(factors + k, rank, rows, count, width, sums + k * width);
}

}  // namespace shardtune::ops::low_rank
