#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd.h"

/// What the loss over all classes and the one over pieces of them do with a row of logits.
namespace shardtune::ops {

[[gnu::always_inline]] inline float maximum(const float* x, std::int64_t n) {
  simd::Floats lanes, next;
  for (int lane = 0; lane < simd::kLanes; ++lane) lanes[lane] = x[0];
  std::int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    std::memcpy(&next, x + i, sizeof next);
    lanes = next > lanes ? next : lanes;
  }
  float most = lanes[0];
  for (int lane = 1; lane < simd::kLanes; ++lane) most = lanes[lane] > most ? lanes[lane] : most;
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

[[gnu::always_inline]] inline double sum_fp64(const float* x, std::int64_t n) {
  simd::Doubles lanes = {};
  simd::Floats next;
  std::int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    std::memcpy(&next, x + i, sizeof next);
    lanes += __builtin_convertvector(next, simd::Doubles);
  }
  double sum = 0;
  for (int lane = 0; lane < simd::kLanes; ++lane) sum += lanes[lane];
  for (; i < n; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

/// A row in fp32.
struct WidenRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* from, float* to, std::int64_t classes) {
    for (std::int64_t c = 0; c < classes; ++c) to[c] = simd::widen(from[c]);
  }
};

/// A row in fp32 to work on: itself, or widened into `space`.
template <typename T>
float* fp32_row(T* row, float* space, std::int64_t classes) {
  if constexpr (std::is_same_v<T, float>) {
    return row;
  } else {
    simd::run<WidenRow>(static_cast<const T*>(row), space, classes);
    return space;
  }
}

struct RoundRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const float* from, T* to, std::int64_t classes) {
    for (std::int64_t c = 0; c < classes; ++c) to[c] = simd::rounded<T>(from[c]);
  }
};

/// What fp32_row() gave, back into the row.
template <typename T>
void round_row(const float* from, T* row, std::int64_t classes) {
  if constexpr (!std::is_same_v<T, float>) simd::run<RoundRow>(from, row, classes);
}

}  // namespace shardtune::ops
