#pragma once
#include "element_types.h"

/// The arithmetic of single values, shared by the twins on the host and by the kernels. Everything is fp32, nothing is
/// contracted (-ffp-contract=off, --fmad=false).
namespace shardtune::quant {

/// A 4-bit kind: the table's midpoints in ascending order of value, the code of each place in that order, the value of each
/// code. Plain arrays, so that a kernel can take it as an argument.
struct FourBitTable {
  float values[16];
  float midpoints[15];
  std::uint8_t code_at[16];
};

/// An 8-bit code: ascending values and the midpoints between them.
struct EightBitTable {
  float values[256];
  float midpoints[255];
};

/// A block's absmax is divided by, so it must not be 0.
constexpr float kSmallestAbsmax = 1e-38F;

/// The code of a scaled value: the number of midpoints below it says the place, so that a value on one takes the lower code.
SHARDTUNE_QUANT_BOTH unsigned code_of(float scaled, const FourBitTable& table) {
  unsigned place = 0;
  for (int i = 0; i < 15; ++i) place += scaled > table.midpoints[i] ? 1U : 0U;
  return table.code_at[place];
}

/// The code of a record's element.
SHARDTUNE_QUANT_BOTH unsigned packed_code(const std::uint8_t* packed, std::int64_t element) {
  const unsigned pair = packed[element / 2];
  return element % 2 == 0 ? pair >> 4 : pair & 15U;
}

/// The absmax that double quantisation stands for.
SHARDTUNE_QUANT_BOTH float nested_scale(float code_value, float nested_absmax, float offset) {
  return code_value * nested_absmax + offset;
}

/// What the values of an int8 row are multiplied with. PyTorch divides 127 by a tensor in two steps, and codes of bf16 weights,
/// which often fall on a half, show it.
SHARDTUNE_QUANT_BOTH float int8_factor(float absmax) { return (1.0F / absmax) * 127.0F; }

/// int8 as bitsandbytes dequantises it: the last factor is the fp32 number nearest to 1 / 127.
SHARDTUNE_QUANT_BOTH float int8_value(int code, float absmax) {
  return (static_cast<float>(code) * absmax) * 7.874015718698502e-3F;
}

/// The point of the grid of 65,536 over [-1, 1] that a scaled value belongs to. The inverse of a tiny absmax is infinite:
/// NaN (from a zero) takes point 0, as bitsandbytes' kernel has it.
SHARDTUNE_QUANT_BOTH int grid_point(float scaled) {
  const float place = (scaled + 1.0F) * 32767.5F + 0.5F;
  const float low = place > 0.0F ? place : 0.0F;
  return static_cast<int>(low < 65535.0F ? low : 65535.0F);
}

/// The code nearest to a point of the grid, the lower one when it lies on a midpoint.
SHARDTUNE_QUANT_BOTH unsigned code_at_grid_point(int point, const EightBitTable& table) {
  const float value = static_cast<float>(point) * (1.0F / 32767.5F) - 1.0F;
  unsigned code = 0;
  for (unsigned step = 128; step > 0; step /= 2)
    if (code + step <= 255 && value > table.midpoints[code + step - 1]) code += step;
  return code;
}

}  // namespace shardtune::quant
