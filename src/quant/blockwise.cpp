#include "shardtune/quant/blockwise.h"

#include <algorithm>
#include <array>

#include "absmax.h"
#include "reference.h"
#include "shardtune/core/error.h"
#include "shardtune/core/simd_level.h"
#include "table_structs.h"

namespace shardtune::quant {
namespace {

/// The code of every point of the grid.
using Grid = std::array<std::uint8_t, 65536>;

Grid grid_of(const EightBitTable& table) {
  Grid grid{};
  for (int point = 0; point < 65536; ++point)
    grid[static_cast<std::size_t>(point)] = static_cast<std::uint8_t>(code_at_grid_point(point, table));
  return grid;
}

const Grid& grid(StateCode code) {
  static const Grid with_sign = grid_of(eight_bit_table(StateCode::kSigned));
  static const Grid without = grid_of(eight_bit_table(StateCode::kUnsigned));
  return code == StateCode::kSigned ? with_sign : without;
}

struct QuantiseStates {
  [[gnu::always_inline]] static void run(const std::uint8_t* grid, const float* values, std::int64_t count,
                                         float* absmax, std::uint8_t* codes) {
    for (std::int64_t first = 0; first < count; first += kStateBlock, ++absmax) {
      const std::int64_t size = std::min(kStateBlock, count - first);
      *absmax = largest_magnitude(values + first, size);
      if (*absmax == 0.0F) {
        std::fill_n(codes + first, size, std::uint8_t{0});
        continue;
      }
      const float factor = 1.0F / *absmax;
      alignas(64) std::array<int, kStateBlock> points;
      for (std::int64_t i = 0; i < size; ++i)
        points[static_cast<std::size_t>(i)] = grid_point(values[first + i] * factor);
      for (std::int64_t i = 0; i < size; ++i) codes[first + i] = grid[points[static_cast<std::size_t>(i)]];
    }
  }
};

struct DequantiseStates {
  [[gnu::always_inline]] static void run(const float* table, const std::uint8_t* codes, const float* absmax,
                                         std::int64_t count, float* values) {
    for (std::int64_t first = 0; first < count; first += kStateBlock, ++absmax) {
      const std::int64_t size = std::min(kStateBlock, count - first);
      const float scale = *absmax;
      for (std::int64_t i = first; i < first + size; ++i) values[i] = table[codes[i]] * scale;
    }
  }
};

void check_sizes(std::size_t values, std::size_t codes, std::size_t absmax) {
  SHARDTUNE_CHECK(codes == values && absmax == (values + kStateBlock - 1) / kStateBlock,
                  "{} codes and {} absmax for {} values", codes, absmax, values);
}

}  // namespace

void quantise_blockwise(StateCode code, std::span<const float> values, std::span<float> absmax,
                        std::span<std::uint8_t> codes) {
  check_sizes(values.size(), codes.size(), absmax.size());
  if (simd::level() == simd::Level::kPlain) return reference::quantise_blockwise(code, values, absmax, codes);
  simd::run<QuantiseStates>(grid(code).data(), values.data(), std::ssize(values), absmax.data(), codes.data());
}

void dequantise_blockwise(StateCode code, std::span<const std::uint8_t> codes, std::span<const float> absmax,
                          std::span<float> values) {
  check_sizes(values.size(), codes.size(), absmax.size());
  if (simd::level() == simd::Level::kPlain) return reference::dequantise_blockwise(code, codes, absmax, values);
  const float* table = eight_bit_table(code).values;
  simd::run<DequantiseStates>(table, codes.data(), absmax.data(), std::ssize(values), values.data());
}

}  // namespace shardtune::quant
