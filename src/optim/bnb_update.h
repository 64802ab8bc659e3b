#pragma once
#include <cstdint>
#include <span>

/// One step of AdamW on a run of elements, with the roundings of bitsandbytes 0.50.2 on a CPU (found by comparing every bit of
/// ten steps with its results): products that its tensor library fuses with a sum are fused here by name. Its square root is
/// that of Intel's MKL, which on some processors is one unit in the last place off; here it is rounded correctly.
namespace shardtune::optim {

/// Of a step; fp32, computed in fp64 and rounded once.
struct BnbConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, gradient_scale;
  float decay;  ///< p is multiplied by it first
  float correction2;  ///< 8-bit: the root of v is divided by it; 32-bit: 1
  float epsilon;  ///< added to the denominator
  float minus_step;  ///< the factor of m / denominator
};

/// Moments in fp32. p = fma(m / (sqrt(v) + epsilon), minus_step, p * decay). All spans have as many elements.
void bnb_update_32bit(const BnbConstants& constants, std::span<float> p, std::span<const float> gradient,
                      std::span<float> m, std::span<float> v);

/// A moment as 8-bit codes with an absmax for each block of 256 elements; the last block may be short.
struct BnbCodes {
  std::span<std::uint8_t> codes;
  std::span<float> absmax;
};

/// The same with 8-bit moments of a run that begins at the start of a block. p = p * decay + (minus_step * m) / (sqrt(v) /
/// correction2 + epsilon), with the moments as they are before they are quantised again.
void bnb_update_8bit(const BnbConstants& constants, std::span<float> p, std::span<const float> gradient,
                     const BnbCodes& m, const BnbCodes& v);

}  // namespace shardtune::optim
