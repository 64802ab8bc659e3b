// The rule of the mask, written out again from its definition, and its properties.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardtune/core/ops.h"
#include "shardtune/core/philox.h"

namespace shardtune {
namespace {

struct Tokens {
  std::vector<std::int64_t> samples;
  std::vector<std::int32_t> positions;
  ops::DropoutKey key(double p, std::uint32_t step = 3, std::uint32_t site = 18, std::uint64_t seed = 77) const {
    return {.seed = seed,
            .step = step,
            .site = site,
            .probability = p,
            .samples = samples,
            .document_positions = positions};
  }
};

/// The rule of ops.h, word by word: whether p = 0.25 at step 3 and site 18 keeps column c of token n.
bool quarter_keeps(const Tokens& tokens, std::int64_t n, std::int64_t c, std::int64_t width, std::uint64_t seed) {
  const auto token = static_cast<std::size_t>(n);
  const std::uint64_t element =
      static_cast<std::uint64_t>(tokens.positions[token]) * static_cast<std::uint64_t>(width) +
      static_cast<std::uint64_t>(c);
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(tokens.samples[token]), 3, 18, static_cast<std::uint32_t>(element / 4)}, seed);
  return static_cast<double>(words[element % 4]) >= 0.25 * 4294967296.0;
}

TEST(Dropout, FollowsTheWrittenRule) {
  const Tokens tokens{{5, 5, 900}, {0, 1, 41}};
  for (const std::int64_t width : {8, 6, 5}) {  // widths that four does not divide begin inside a group
    const at::Tensor x = at::arange(1, 3 * width + 1, at::kFloat).view({3, width});
    const at::Tensor y = ops::dropout(x, tokens.key(0.25));
    for (std::int64_t n = 0; n < 3; ++n)
      for (std::int64_t c = 0; c < width; ++c) {
        const bool kept = quarter_keeps(tokens, n, c, width, 77);
        EXPECT_EQ(y[n][c].item<float>(), kept ? x[n][c].item<float>() * (1.0f / 0.75f) : 0.0f) << n << " " << c;
      }
  }
}

TEST(Dropout, KeepsTheRightShare) {
  Tokens tokens;
  for (std::int32_t i = 0; i < 500; ++i) {
    tokens.samples.push_back(i);
    tokens.positions.push_back(i % 7);
  }
  const at::Tensor y = ops::dropout(at::ones({500, 400}), tokens.key(0.1));
  const double kept = at::count_nonzero(y).item<double>() / 200000.0;
  EXPECT_NEAR(kept, 0.9, 6 * std::sqrt(0.1 * 0.9 / 200000.0));  // six standard deviations
}

// 1e-6 of 2^32 words are 4294.97, of which 4294 keep: p = 1e-6 is what fp32 makes of it to 1.3 percent only.
TEST(Dropout, ScaleIsTheInverseOfTheKeptShareNearOne) {
  Tokens tokens;
  for (std::int32_t i = 0; i < 4096; ++i) {
    tokens.samples.push_back(i);
    tokens.positions.push_back(0);
  }
  const at::Tensor y = ops::dropout(at::ones({4096, 4096}), tokens.key(1 - 1e-6));
  const at::Tensor kept = y.masked_select(y != 0);
  EXPECT_NEAR(static_cast<double>(kept.numel()), 16.8, 6 * std::sqrt(16.8));  // six standard deviations
  ASSERT_GT(kept.numel(), 0);
  EXPECT_FLOAT_EQ(kept.min().item<float>(), 4294967296.0f / 4294.0f);
  EXPECT_FLOAT_EQ(kept.max().item<float>(), 4294967296.0f / 4294.0f);
}

TEST(Dropout, DependsOnTheDocumentAndNotOnTheBatch) {
  const Tokens together{{1, 1, 2}, {0, 1, 0}}, alone{{2}, {0}};
  const at::Tensor x = at::ones({3, 64});
  EXPECT_TRUE(at::equal(ops::dropout(x, together.key(0.5))[2], ops::dropout(x.narrow(0, 0, 1), alone.key(0.5))[0]));
  const at::Tensor one = ops::dropout(x, together.key(0.5));
  EXPECT_FALSE(at::equal(one, ops::dropout(x, together.key(0.5, 4))));
  EXPECT_FALSE(at::equal(one, ops::dropout(x, together.key(0.5, 3, 19))));
  EXPECT_FALSE(at::equal(one, ops::dropout(x, together.key(0.5, 3, 18, 78))));
  EXPECT_TRUE(at::equal(one, ops::dropout(x, together.key(0.5))));
}

// The vector form of the generator, over the end of the 32-bit counter and rows longer than one block of it.
TEST(Dropout, LongRowsFollowTheWrittenRule) {
  const Tokens tokens{{5, (1ll << 33) + 7, 900}, {0, 6441645, 41}};
  const std::int64_t width = 2667;  // 6441645 * width = 2^34 - 1969: the counter begins again inside the second row
  const std::uint64_t seed = 0x9E3779B97F4A7C15u;
  const at::Tensor x = at::arange(1, 3 * width + 1, at::kFloat).view({3, width}).contiguous();
  const at::Tensor y = ops::dropout(x, tokens.key(0.25, 3, 18, seed)).contiguous();
  const auto *from = x.const_data_ptr<float>(), *found = y.const_data_ptr<float>();
  for (std::int64_t n = 0; n < 3; ++n)
    for (std::int64_t c = 0; c < width; ++c) {
      const bool kept = quarter_keeps(tokens, n, c, width, seed);
      ASSERT_EQ(found[n * width + c], kept ? from[n * width + c] * (1.0f / 0.75f) : 0.0f) << n << " " << c;
    }
}

TEST(Dropout, ZeroProbabilityIsTheInput) {
  const Tokens tokens{{1}, {0}};
  const at::Tensor x = at::ones({1, 4});
  EXPECT_EQ(ops::dropout(x, tokens.key(0)).const_data_ptr(), x.const_data_ptr());
}

}  // namespace
}  // namespace shardtune
