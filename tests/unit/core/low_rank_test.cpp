// The fused path against its definition in fp64, with the mask of ops::dropout, which has tests of its own.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "shardtune/core/low_rank.h"

namespace shardtune {
namespace {

struct Shape {
  std::int64_t tokens, in, out, rank;
};

// Both paths (up to rank 32 and above), ranks and widths that the blocks of the loops divide and do not; one row, and
// more rows than a block.
const std::vector<Shape> kShapes = {{1, 5, 3, 1},     {7, 16, 40, 4},    {8, 77, 16, 3},     {33, 48, 192, 8},
                                    {9, 576, 33, 17}, {20, 130, 576, 6}, {5, 2667, 1500, 2}, {0, 8, 8, 4},
                                    {9, 77, 33, 32},  {300, 48, 64, 33}, {0, 8, 8, 64}};

/// One linear's tensors, drawn anew for each shape; A and B fp32, the others of `type`.
struct Case {
  Case(const Shape& shape, at::ScalarType type) : tokens(shape.tokens) {
    at::manual_seed(7);
    const auto draw = [&](std::int64_t rows, std::int64_t columns, at::ScalarType as) {
      return at::randn({rows, columns}, at::kFloat).to(as);
    };
    x = draw(tokens, shape.in, type);
    y = draw(tokens, shape.out, type);
    gradient = draw(tokens, shape.out, type);
    x_gradient = draw(tokens, shape.in, type);
    a = draw(shape.rank, shape.in, at::kFloat);
    b = draw(shape.out, shape.rank, at::kFloat);
    a_gradient = draw(shape.rank, shape.in, at::kFloat);
    b_gradient = draw(shape.out, shape.rank, at::kFloat);
    samples.resize(static_cast<std::size_t>(tokens), 5);
    positions.resize(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 3);
  }

  ops::DropoutKey key(double p) const {
    if (p == 0) return {};
    return {.seed = 77, .step = 3, .site = 18, .probability = p, .samples = samples, .document_positions = positions};
  }

  std::int64_t tokens;
  at::Tensor x, y, gradient, x_gradient, a, b, a_gradient, b_gradient;
  std::vector<std::int64_t> samples;
  std::vector<std::int32_t> positions;
};

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

at::Tensor masked(const at::Tensor& x, const ops::DropoutKey& key) { return wide(ops::dropout(x.to(at::kFloat), key)); }

/// Each element: one rounding to its type (half of the last bit: `rounding`), and fp32 sums of up to 2667 terms.
void expect_near(const at::Tensor& found, const at::Tensor& exact, double rounding, const char* what) {
  if (exact.numel() == 0) return;
  const at::Tensor allowed = exact.abs() * rounding + 2e-6 * exact.abs().max();
  EXPECT_TRUE(at::le(at::sub(wide(found), exact).abs(), allowed).all().item<bool>()) << what << " " << exact.sizes();
}

constexpr double kFp32 = 0, kBf16 = 1.0 / 256, kFp16 = 1.0 / 2048;

constexpr double kScaling = 2.0;

void check_forward(at::ScalarType type, double rounding) {
  for (const Shape& shape : kShapes)
    for (const double p : {0.0, 0.25}) {
      Case c(shape, type);
      const at::Tensor exact = wide(c.y) + kScaling * masked(c.x, c.key(p)).mm(wide(c.a).t()).mm(wide(c.b).t());
      ops::add_low_rank(c.y, c.x, {c.a, c.b, kScaling}, c.key(p));
      EXPECT_EQ(c.y.scalar_type(), type);
      expect_near(c.y, exact, rounding, "y");
    }
}

void check_backward(at::ScalarType type, double rounding) {
  for (const Shape& shape : kShapes)
    for (const double p : {0.0, 0.25}) {
      Case c(shape, type);
      const at::Tensor reduced = kScaling * wide(c.gradient).mm(wide(c.b)), x = masked(c.x, c.key(p));
      const at::Tensor x_exact = wide(c.x_gradient) + masked(reduced.mm(wide(c.a)), c.key(p));
      const at::Tensor a_exact = wide(c.a_gradient) + reduced.t().mm(x);
      const at::Tensor b_exact = wide(c.b_gradient) + kScaling * wide(c.gradient).t().mm(x.mm(wide(c.a).t()));
      ops::low_rank_backward(c.x, c.gradient, {c.a, c.b, kScaling}, c.key(p), c.x_gradient, &c.a_gradient,
                             &c.b_gradient);
      EXPECT_EQ(c.x_gradient.scalar_type(), type);
      expect_near(c.x_gradient, x_exact, rounding, "x");
      expect_near(c.a_gradient, a_exact, kFp32, "A");
      expect_near(c.b_gradient, b_exact, kFp32, "B");
    }
}

TEST(LowRank, ForwardInFp32) { check_forward(at::kFloat, kFp32); }
TEST(LowRank, ForwardInBf16RoundsOnce) { check_forward(at::kBFloat16, kBf16); }
TEST(LowRank, ForwardInFp16RoundsOnce) { check_forward(at::kHalf, kFp16); }
TEST(LowRank, BackwardInFp32) { check_backward(at::kFloat, kFp32); }
TEST(LowRank, BackwardInBf16RoundsOnce) { check_backward(at::kBFloat16, kBf16); }
TEST(LowRank, BackwardInFp16RoundsOnce) { check_backward(at::kHalf, kFp16); }

TEST(LowRank, EveryThreadAddsItsPart) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  check_forward(at::kFloat, kFp32);
  check_backward(at::kFloat, kFp32);
  at::set_num_threads(before);
}

TEST(LowRank, FrozenFactorsGetNoGradient) {
  Case c(kShapes[3], at::kFloat), same(kShapes[3], at::kFloat);
  ops::low_rank_backward(c.x, c.gradient, {c.a, c.b, kScaling}, c.key(0.25), c.x_gradient, nullptr, nullptr);
  ops::low_rank_backward(same.x, same.gradient, {same.a, same.b, kScaling}, same.key(0.25), same.x_gradient,
                         &same.a_gradient, &same.b_gradient);
  EXPECT_TRUE(at::equal(c.x_gradient, same.x_gradient));
}

TEST(LowRank, NanStaysNanInBf16) {
  Case c(kShapes[1], at::kBFloat16);
  c.x.select(0, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  ops::add_low_rank(c.y, c.x, {c.a, c.b, kScaling}, c.key(0));
  EXPECT_TRUE(c.y.select(0, 2).isnan().all().item<bool>());
  EXPECT_FALSE(c.y.select(0, 1).isnan().any().item<bool>());
}

}  // namespace
}  // namespace shardtune
