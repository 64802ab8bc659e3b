#pragma once
#include <cstdint>
#include <span>

#include "shardtune/quant/format.h"

namespace shardtune::quant {

/// The two 8-bit codes for blocks of 256 values: signed for first moments and nested absmax, unsigned for second moments.
enum class StateCode { kSigned, kUnsigned };

/// The value of each 4-bit code, by code. NF4: quantiles of the normal distribution (Dettmers et al., QLoRA, 2023, appendix
/// E). FP4: the table of bitsandbytes, not sorted. A checkpoint quantised elsewhere must carry the same table.
std::span<const float, 16> code_values(Kind kind);

/// The value of each 8-bit code, ascending: "dynamic" quantisation (Dettmers, 8-Bit Approximations for Parallelism in Deep
/// Learning, 2016) with the figures of bitsandbytes.
std::span<const float, 256> code_values(StateCode code);

}  // namespace shardtune::quant
