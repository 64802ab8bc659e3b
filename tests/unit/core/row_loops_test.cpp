// The row loops: the same bits under every instruction set, and in bf16 what LibTorch's operators give one by one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "core/ops/simd.h"
#include "shardtune/core/low_rank.h"

namespace shardtune {
namespace {

using ops::simd::Level;

/// Runs the rest of a test under `level`, where the processor has it.
class WithLevel {
 public:
  explicit WithLevel(Level level) : before_(ops::simd::level()) { ops::simd::level() = std::min(level, before_); }
  ~WithLevel() { ops::simd::level() = before_; }
  WithLevel(const WithLevel&) = delete;
  WithLevel& operator=(const WithLevel&) = delete;

 private:
  Level before_;
};

// 77: no vector width divides it.
constexpr std::int64_t kRows = 9, kWidth = 77, kRank = 5;  // a rank of loops: products are the library's own

/// Every operator with a row loop on the same input.
std::vector<at::Tensor> all_results(at::ScalarType type) {
  at::manual_seed(11);
  const auto draw = [&](at::IntArrayRef shape, at::ScalarType as) { return (at::randn(shape) * 2).to(as); };
  const at::Tensor x = draw({kRows, kWidth}, type), g = draw({kRows, kWidth}, type), w = draw({kWidth}, type);
  std::vector<at::Tensor> results = {ops::rms_norm(x, w, 1e-5), ops::rms_norm_backward(g, x, w, 1e-5, nullptr)};
  const at::Tensor angle = draw({kRows, 7}, at::kFloat);
  at::Tensor turned = draw({kRows, 3, 14}, type);
  ops::apply_rotary(turned, at::cos(angle).to(type), at::sin(angle).to(type), true);
  at::Tensor gate = x.clone(), up = g.clone();
  results.insert(results.end(), {turned, ops::swiglu(x, g)});
  ops::swiglu_backward(draw({kRows, kWidth}, type), gate, up);
  at::Tensor logits = draw({kRows, kWidth}, type);
  const double loss = ops::cross_entropy_in_place(logits, at::arange(kRows), 0.25, true);
  results.insert(results.end(), {gate, up, logits, at::full({1}, loss, at::kDouble)});
  const std::vector<std::int64_t> samples(kRows, 4);
  std::vector<std::int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 2);
  const ops::DropoutKey key{
      .seed = 5, .step = 3, .site = 2, .probability = 0.3, .samples = samples, .document_positions = positions};
  const at::Tensor a = draw({kRank, kWidth}, at::kFloat), b = draw({kWidth, kRank}, at::kFloat);
  at::Tensor y = x.clone(), x_gradient = g.clone(), a_gradient = at::zeros_like(a), b_gradient = at::zeros_like(b);
  ops::add_low_rank(y, x, {a, b, 1.5}, key);
  ops::low_rank_backward(x, g, {a, b, 1.5}, key, x_gradient, &a_gradient, &b_gradient);
  results.insert(results.end(), {ops::dropout(x, key), y, x_gradient, a_gradient, b_gradient});
  return results;
}

class RowLoops : public testing::TestWithParam<at::ScalarType> {};

TEST_P(RowLoops, SameBitsUnderEveryInstructionSet) {
  const auto best = all_results(GetParam());
  for (const Level level : {Level::kPlain, Level::kAvx2}) {
    const WithLevel lowered(level);
    const auto found = all_results(GetParam());
    ASSERT_EQ(found.size(), best.size());
    for (std::size_t i = 0; i < best.size(); ++i)
      EXPECT_TRUE(at::equal(found[i], best[i])) << "result " << i << " at level " << static_cast<int>(level);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowLoops, testing::Values(at::kFloat, at::kBFloat16));

/// One unit in the last of bf16's 8 places at most, and only where the exponential or a sum rounds the other way.
void expect_as_operators(const at::Tensor& found, const at::Tensor& reference, double share_of_equal) {
  ASSERT_EQ(found.scalar_type(), at::kBFloat16);
  ASSERT_EQ(reference.scalar_type(), at::kBFloat16);
  const at::Tensor a = found.to(at::kDouble), b = reference.to(at::kDouble);
  EXPECT_TRUE(at::le((a - b).abs(), b.abs() / 128).all().item<bool>()) << (a - b).abs().max();
  EXPECT_GE(at::eq(a, b).to(at::kDouble).mean().item<double>(), share_of_equal);
}

at::Tensor bf16(at::IntArrayRef shape) { return (at::randn(shape) * 2).to(at::kBFloat16); }

TEST(RowLoopsInBf16, NormRoundsBeforeTheWeight) {
  at::manual_seed(1);
  const at::Tensor x = bf16({50, 200}), w = bf16({200}), wide = x.to(at::kFloat);
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean({1}, true) + 1e-5);
  expect_as_operators(ops::rms_norm(x, w, 1e-5), normed.to(at::kBFloat16) * w, 0.99);
}

TEST(RowLoopsInBf16, RotaryRoundsEveryStep) {
  at::manual_seed(2);
  const at::Tensor angle = at::randn({50, 16});
  const at::Tensor c = at::cos(angle).to(at::kBFloat16), s = at::sin(angle).to(at::kBFloat16), x = bf16({50, 3, 32});
  const at::Tensor low = x.narrow(2, 0, 16), high = x.narrow(2, 16, 16), c1 = c.unsqueeze(1), s1 = s.unsqueeze(1);
  at::Tensor turned = x.clone();
  ops::apply_rotary(turned, c, s, false);
  expect_as_operators(turned, at::cat({low * c1 - high * s1, high * c1 + low * s1}, 2), 1.0);
}

TEST(RowLoopsInBf16, SwigluRoundsEveryStep) {
  at::manual_seed(3);
  const at::Tensor gate = bf16({50, 200}), up = bf16({50, 200}), gradient = bf16({50, 200});
  expect_as_operators(ops::swiglu(gate, up), at::silu(gate) * up, 0.99);
  at::Tensor gate_gradient = gate.clone(), up_gradient = up.clone();
  ops::swiglu_backward(gradient, gate_gradient, up_gradient);
  expect_as_operators(gate_gradient, at::silu_backward(gradient * up, gate), 0.99);
  expect_as_operators(up_gradient, at::silu(gate) * gradient, 0.99);
}

TEST(RowLoopsInBf16, LossIsThatOfTheWidenedLogits) {
  at::manual_seed(4);
  at::Tensor logits = bf16({20, 300}), wide = logits.to(at::kFloat);
  const at::Tensor targets = at::arange(20);
  EXPECT_EQ(ops::cross_entropy_in_place(logits, targets, 0.5, true),
            ops::cross_entropy_in_place(wide, targets, 0.5, true));
  EXPECT_TRUE(at::equal(logits, wide.to(at::kBFloat16)));
}

}  // namespace
}  // namespace shardtune
