#pragma once
#include <algorithm>
#include <cstdint>

#include "element_types.h"

namespace shardtune::quant {

/// The largest magnitude; 0 of nothing. By the bits, whose order without the sign is that of the values: a maximum of
/// integers vectorises, one of floats does not because of NaN.
template <typename T>
[[gnu::always_inline]] inline float largest_magnitude(const T* values, std::int64_t count) {
  std::uint32_t top = 0;
  for (std::int64_t i = 0; i < count; ++i) top = std::max(top, bits_of(widened(values[i])) & 0x7FFFFFFFU);
  return float_of(top);
}

}  // namespace shardtune::quant
