#include "bnb_update.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "shardtune/core/simd_level.h"
#include "shardtune/quant/blockwise.h"

namespace shardtune::optim {
namespace {

constexpr std::size_t kBlock = quant::kStateBlock;
using Block = std::array<float, kBlock>;

/// A whole block, so that the loop has a length that is known and vectorises.
template <bool kEightBit>
struct UpdateBlock {
  [[gnu::always_inline]] static void run(const BnbConstants* constants, float* __restrict p,
                                         const float* __restrict gradient, float* __restrict m, float* __restrict v) {
    const BnbConstants c = *constants;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float g = gradient[i] * c.gradient_scale;
      m[i] = std::fma(g, c.one_minus_beta1, m[i] * c.beta1);
      v[i] = std::fma(c.one_minus_beta2 * g, g, v[i] * c.beta2);
      const float root = std::sqrt(v[i]), decayed = p[i] * c.decay;
      if constexpr (kEightBit) p[i] = decayed + (c.minus_step * m[i]) / (root / c.correction2 + c.epsilon);
      else p[i] = std::fma(m[i] / (root + c.epsilon), c.minus_step, decayed);
    }
  }
};

/// The same for the last elements of a run: on copies, as if zeros followed.
template <bool kEightBit>
void update_short_block(const BnbConstants& constants, std::span<float> p, std::span<const float> gradient, Block& m,
                        Block& v) {
  Block weights{}, gradients{};
  std::ranges::copy(p, weights.begin());
  std::ranges::copy(gradient, gradients.begin());
  simd::run<UpdateBlock<kEightBit>>(&constants, weights.data(), gradients.data(), m.data(), v.data());
  std::copy_n(weights.begin(), p.size(), p.begin());
}

}  // namespace

void bnb_update_32bit(const BnbConstants& constants, std::span<float> p, std::span<const float> gradient,
                      std::span<float> m, std::span<float> v) {
  std::size_t first = 0;
  for (; first + kBlock <= p.size(); first += kBlock)
    simd::run<UpdateBlock<false>>(&constants, p.data() + first, gradient.data() + first, m.data() + first,
                                  v.data() + first);
  if (first == p.size()) return;
  Block first_moment{}, second_moment{};
  std::ranges::copy(m.subspan(first), first_moment.begin());
  std::ranges::copy(v.subspan(first), second_moment.begin());
  update_short_block<false>(constants, p.subspan(first), gradient.subspan(first), first_moment, second_moment);
  std::copy_n(first_moment.begin(), p.size() - first, m.begin() + static_cast<std::ptrdiff_t>(first));
  std::copy_n(second_moment.begin(), p.size() - first, v.begin() + static_cast<std::ptrdiff_t>(first));
}

void bnb_update_8bit(const BnbConstants& constants, std::span<float> p, std::span<const float> gradient,
                     const BnbCodes& m, const BnbCodes& v) {
  using quant::StateCode;
  alignas(64) Block first_moment{}, second_moment{};
  for (std::size_t first = 0, block = 0; first < p.size(); first += kBlock, ++block) {
    const std::size_t size = std::min(kBlock, p.size() - first);
    if (size < kBlock) first_moment = second_moment = {};
    const std::span<float> wide_m(first_moment.data(), size), wide_v(second_moment.data(), size);
    const auto codes_m = m.codes.subspan(first, size), codes_v = v.codes.subspan(first, size);
    const auto absmax_m = m.absmax.subspan(block, 1), absmax_v = v.absmax.subspan(block, 1);
    quant::dequantise_blockwise(StateCode::kSigned, codes_m, absmax_m, wide_m);
    quant::dequantise_blockwise(StateCode::kUnsigned, codes_v, absmax_v, wide_v);
    if (size == kBlock)
      simd::run<UpdateBlock<true>>(&constants, p.data() + first, gradient.data() + first, first_moment.data(),
                                   second_moment.data());
    else update_short_block<true>(constants, p.subspan(first), gradient.subspan(first), first_moment, second_moment);
    quant::quantise_blockwise(StateCode::kSigned, wide_m, absmax_m, codes_m);
    quant::quantise_blockwise(StateCode::kUnsigned, wide_v, absmax_v, codes_v);
  }
}

}  // namespace shardtune::optim
