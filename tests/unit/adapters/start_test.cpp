// Factors that adapters start from, of weights whose singular values are known.
#include "shardtune/adapters/start.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace shardtune::adapters {
namespace {

constexpr std::int64_t kRank = 4;

at::Tensor numbers(std::vector<std::int64_t> shape, double step) {
  at::Tensor out = at::empty(shape, at::kDouble);
  for (std::int64_t i = 0; i < out.numel(); ++i)
    out.flatten()[i] = std::sin(step * static_cast<double>(i + 1) * static_cast<double>(i + 3));
  return out;
}

/// W = U diag(1, 1/2, 1/4, ...) V^T and what its first kRank terms make.
struct Known {
  at::Tensor weight, first;
};

Known known(std::int64_t out, std::int64_t in) {
  const std::int64_t all = std::min(out, in);
  const at::Tensor u = std::get<0>(at::linalg_qr(numbers({out, all}, 0.37))),
                   v = std::get<0>(at::linalg_qr(numbers({in, all}, 0.71)));
  const at::Tensor values = at::pow(0.5, at::arange(all, at::kDouble));
  const auto terms = [&](std::int64_t count) {
    return at::matmul(at::mul(u.narrow(1, 0, count), values.narrow(0, 0, count)), v.narrow(1, 0, count).t());
  };
  return {terms(all), terms(kRank)};
}

LoraConfig config(const char* start) {
  LoraConfig lora;
  lora.rank = kRank;
  lora.alpha = 12;
  lora.modules = {"m"};
  lora.start = start;
  return lora;
}

void fill(const at::Tensor& out) { out.copy_(numbers(out.sizes().vec(), 0.53)); }

double relative(const at::Tensor& found, const at::Tensor& wanted) {
  return (at::norm(found.to(at::kDouble) - wanted) / at::norm(wanted)).item<double>();
}

at::Tensor product(const Factors& factors, double scale) { return at::mul(at::matmul(factors.b, factors.a), scale); }

TEST(StartFactors, PissaTakesTheFirstSingularTerms) {
  for (const auto& [out, in] : {std::pair(24, 40), std::pair(40, 24), std::pair(32, 32)}) {
    const Known wanted = known(out, in);
    const LoraConfig lora = config("pissa");
    const Factors factors = start_factors(wanted.weight, lora, "m", fill);
    EXPECT_LE(relative(product(factors, lora.scaling()), wanted.first), 1e-6) << out;
    // Both sides get the root: A A^T = B^T B = diag(S) / scaling.
    const at::Tensor share = at::diag(at::pow(0.5, at::arange(kRank, at::kDouble))) / lora.scaling();
    EXPECT_LE(relative(at::matmul(factors.a, factors.a.t()), share), 1e-6) << out;
    EXPECT_LE(relative(at::matmul(factors.b.t(), factors.b), share), 1e-6) << out;
  }
}

/// An iteration brings the rest of the subspace down by the square of the ratio of neighbouring singular values, here 1/4.
TEST(StartFactors, IterationsComeNearTheFirstSingularTerms) {
  for (const auto& [out, in] : {std::pair(24, 40), std::pair(40, 24)}) {
    const Known wanted = known(out, in);
    double before = 1;
    for (const auto& [start, bound] : {std::pair("pissa_niter_0", 1.0), std::pair("pissa_niter_2", 5e-2),
                                       std::pair("pissa_niter_5", 1e-3), std::pair("pissa_niter_12", 1e-6)}) {
      const LoraConfig lora = config(start);
      const double error =
          relative(product(start_factors(wanted.weight, lora, "m", fill), lora.scaling()), wanted.first);
      EXPECT_LE(error, bound) << start;
      EXPECT_LT(error, before) << start;
      before = error;
    }
  }
}

TEST(StartFactors, OloraTakesTheFirstColumnsWhateverTheScale) {
  const Known wanted = known(24, 40);
  const Factors factors = start_factors(wanted.weight, config("olora"), "m", fill);
  EXPECT_LE(relative(at::matmul(factors.b.t(), factors.b), at::eye(kRank, at::kDouble)), 1e-6);
  EXPECT_LE(relative(product(factors, 1).narrow(1, 0, kRank), wanted.weight.narrow(1, 0, kRank)), 1e-6);
  EXPECT_EQ(at::count_nonzero(at::tril(factors.a, -1)).item<std::int64_t>(), 0);
}

TEST(StartFactors, FrozenStartTakesBackWhatTheAdapterAdds) {
  LoraConfig lora = config("pissa");
  lora.dropout = 0.1;
  lora.modules = {"m", "n", kEmbedding};
  lora.alphas = {{"n", 3}};
  lora.ranks = {{"n", 2}};
  for (const bool rank_stabilised : {false, true}) {
    lora.rank_stabilised = rank_stabilised;
    const LoraConfig start = frozen_start(lora), both = with_start_inside(lora);
    for (const char* module : {"m", "n"}) {
      EXPECT_EQ(start.scaling_of(module), -lora.scaling_of(module));
      EXPECT_EQ(start.rank_of(module), lora.rank_of(module));
      EXPECT_DOUBLE_EQ(both.scaling_of(module), lora.scaling_of(module));
      EXPECT_EQ(both.rank_of(module), 2 * lora.rank_of(module));
    }
    EXPECT_EQ(start.dropout, 0);
    EXPECT_FALSE(start.modules.contains(kEmbedding));
  }
}

}  // namespace
}  // namespace shardtune::adapters
