#pragma once
#include <cstdint>
#include <span>

#include "shardtune/quant/tables.h"

/// fp32 values in 8 bits by blocks of 256: optimizer states and nested absmax.
namespace shardtune::quant {

inline constexpr std::int64_t kStateBlock = 256;

/// `codes` has one entry per value, `absmax` one per block: ceil(values / 256), the last may be short. The code is the one
/// nearest to the point of an even grid of 65,536 points over [-1, 1] that floor((value * (1 / absmax) + 1) * 32767.5 + 0.5)
/// names, all in fp32, and 0 in a block of zeros: the rule of bitsandbytes' CPU kernel, not the nearest code to the value.
void quantise_blockwise(StateCode code, std::span<const float> values, std::span<float> absmax,
                        std::span<std::uint8_t> codes);

/// table[code] * absmax in fp32.
void dequantise_blockwise(StateCode code, std::span<const std::uint8_t> codes, std::span<const float> absmax,
                          std::span<float> values);

}  // namespace shardtune::quant
