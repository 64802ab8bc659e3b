// The loss over classes that come in pieces against fp64 mathematics, and against the loss over all of them.
#include "shardtune/core/row_pieces.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shardtune/core/ops.h"

namespace shardtune {
namespace {

constexpr std::int64_t kRows = 5, kWidth = 8, kClasses = 37;

at::Tensor wave(at::IntArrayRef sizes, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return at::sin(at::arange(count, at::kDouble) * 1.7 + phase).to(at::kFloat).view(sizes);
}

struct Result {
  double loss = 0;
  at::Tensor gradient;
};

/// Of logits input head^T, taken in pieces that begin at `cuts`.
Result in_pieces(const at::Tensor& input, const at::Tensor& head, const at::Tensor& targets,
                 std::vector<std::int64_t> cuts, double scale) {
  const std::int64_t rows = input.size(0);
  ops::RunningSoftmax softmax(rows, input.options());
  at::Tensor weighted = at::zeros(input.sizes(), at::kFloat), target_rows = at::empty(input.sizes(), input.options());
  cuts.push_back(head.size(0));
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const at::Tensor piece = head.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
    at::Tensor logits = at::mm(input, piece.t());
    const at::Tensor factors = ops::add_classes(softmax, logits, targets, cuts[i]);
    weighted.mul_(factors);
    ops::add_product_fp32(weighted, logits, piece);
    ops::take_rows_of_piece(target_rows, piece, targets, cuts[i]);
  }
  Result out{.loss = ops::loss_of(softmax, head.size(0)), .gradient = {}};
  out.gradient = ops::input_gradient(softmax, weighted, target_rows, scale, input.scalar_type());
  return out;
}

Result exact(const at::Tensor& input, const at::Tensor& head, const at::Tensor& targets, double scale) {
  const at::Tensor wide = head.to(at::kDouble), logits = at::mm(input.to(at::kDouble), wide.t());
  at::Tensor of_logits = at::softmax(logits, 1);
  for (std::int64_t n = 0; n < input.size(0); ++n) of_logits[n][targets[n].item<std::int64_t>()] -= 1.0;
  const at::Tensor at_target = at::gather(logits, 1, targets.unsqueeze(1)).squeeze(1);
  return {(at::logsumexp(logits, {1}) - at_target).sum().item<double>(), at::mm(of_logits, wide) * scale};
}

double largest(const at::Tensor& x) { return at::abs(x).max().item<double>(); }

class Pieces : public ::testing::TestWithParam<std::vector<std::int64_t>> {};

TEST_P(Pieces, LossAndGradientOfTheMathematics) {
  const at::Tensor input = wave({kRows, kWidth}, 0.3) * 2, head = wave({kClasses, kWidth}, 1.1) * 2;
  const at::Tensor targets = at::tensor({0, 36, 12, 13, 20}, at::kLong);
  const Result found = in_pieces(input, head, targets, GetParam(), 0.25), expected = exact(input, head, targets, 0.25);
  EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss);
  EXPECT_LE(largest(found.gradient.to(at::kDouble) - expected.gradient), 1e-6);
}

// The last with pieces that hold nothing but a target.
INSTANTIATE_TEST_SUITE_P(Cuts, Pieces,
                         ::testing::Values(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{0, 13, 20},
                                           std::vector<std::int64_t>{0, 1, 36}));

/// The maximum comes in the last piece and in the first: what came before, or comes after, shrinks to nothing.
TEST(Pieces, LogitsThatGrowAndFall) {
  const at::Tensor input = at::ones({2, 1}), targets = at::tensor({3, 3}, at::kLong);
  for (const bool grow : {true, false}) {
    at::Tensor head = at::tensor({-90.f, 0.f, 100.f, 150.f, 200.f, 203.f}).view({6, 1});
    if (!grow) head = at::flip(head, {0});
    const Result found = in_pieces(input, head, targets, {0, 2, 4}, 1.0), expected = exact(input, head, targets, 1.0);
    EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_LE(largest(found.gradient.to(at::kDouble) / expected.gradient - 1.0), 1e-5);
  }
}

/// A model that is nearly sure: the loss and the gradient are tiny and keep their digits. By hand: with d = 20 over the other two,
/// loss = log(1 + 2 e^-20), and the gradient for the input is 2 e^-20 / (1 + 2 e^-20) times -20.
TEST(Pieces, NearlySureKeepsItsDigits) {
  const at::Tensor head = at::tensor({0.f, 20.f, 0.f}).view({3, 1});
  const Result found = in_pieces(at::ones({1, 1}), head, at::tensor({1}, at::kLong), {0, 1, 2}, 1.0);
  const double others = 2 * std::exp(-20.0);
  EXPECT_NEAR(found.loss, std::log1p(others), 1e-6 * others);
  EXPECT_NEAR(found.gradient[0][0].item<double>(), -20 * others / (1 + others), 1e-5 * 20 * others);
}

TEST(Pieces, NotANumberAndInfinityAreNotHidden) {
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()})
    for (const std::int64_t where : {0, 2, 3}) {
      at::Tensor head = at::zeros({4, 1});
      head[where][0] = bad;
      EXPECT_FALSE(std::isfinite(in_pieces(at::ones({1, 1}), head, at::tensor({2}, at::kLong), {0, 2}, 1.0).loss))
          << bad << " at " << where;
    }
}

TEST(Pieces, RowsOfAPieceAreTakenInTheTypeThatIsWanted) {
  const at::Tensor table = wave({6, 4}, 0.5), ids = at::tensor({5, 0, 2, 5}, at::kLong);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor rows = at::empty({4, 4}, at::dtype(type));
    for (const std::int64_t first : {0, 2, 4}) ops::take_rows_of_piece(rows, table.narrow(0, first, 2), ids, first);
    EXPECT_TRUE(at::equal(rows, at::index_select(table, 0, ids).to(type)));
  }
}

}  // namespace
}  // namespace shardtune
