#pragma once
#include <cstdint>

#include "element_types.h"
#include "expand.h"

namespace shardtune::quant {

/// out[i] = int8_value(codes[i], absmax) rounded to the type of `out`, for the leading multiple of 32 elements, in AVX2 or AVX-512:
/// returns how many that is. 0 where the loops of the compiler must do: at the plain level, for an absmax that is not finite or so
/// small that a product is subnormal, which the processor's own rounding to bf16 takes for 0.
std::int64_t int8_row(const std::int8_t* codes, std::int64_t count, float absmax, Stores stores, Bf16* out);
std::int64_t int8_row(const std::int8_t* codes, std::int64_t count, float absmax, Stores stores, float* out);

/// Whether the processor's own rounding to bf16 is used, where it has one; tests switch it off to reach the other loop.
bool& int8_rows_round_in_hardware();

}  // namespace shardtune::quant
