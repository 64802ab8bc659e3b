// Drawn tokens against the probabilities that Transformers leaves behind temperature, top_k and top_p.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "shardtune/train/generate.h"
#include "support/scratch.h"

namespace shardtune::train {
namespace {

nlohmann::json reference() {
  std::ifstream in(testing::data_folder() / "generate/sampling.json");
  return nlohmann::json::parse(in);
}

TEST(NextToken, GreedyTakesTheLowestOfEqualOnes) {
  const std::vector<float> logits = {-1, 3, 2, 3, 3};
  EXPECT_EQ(next_token(logits, {}, 42, 0, 0), 1);
}

TEST(NextToken, FrequenciesOfTheReference) {
  const nlohmann::json file = reference();
  const auto logits = file["logits"].get<std::vector<float>>();
  constexpr int kDraws = 40'000;
  ASSERT_EQ(file["cases"].size(), 8u);
  for (const auto& entry : file["cases"]) {
    GenerateOptions options;
    options.do_sample = true;
    options.temperature = entry["temperature"];
    options.top_p = entry["top_p"];
    options.top_k = entry["top_k"];
    std::vector<int> seen(logits.size(), 0);
    for (int i = 0; i < kDraws; ++i)
      ++seen[static_cast<std::size_t>(next_token(logits, options, 1, i % 7, static_cast<std::uint32_t>(i / 7)))];
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const double p = entry["probabilities"][id];
      if (p == 0) EXPECT_EQ(seen[id], 0) << entry.dump() << " token " << id;
      // Five standard deviations of the count, and one token.
      else
        EXPECT_NEAR(seen[id], p * kDraws, 5 * std::sqrt(kDraws * p * (1 - p)) + 1) << entry.dump() << " token " << id;
    }
  }
}

TEST(NextToken, IsAFunctionOfSeedPromptAndPosition) {
  const std::vector<float> logits(1000, 0);
  GenerateOptions options;
  options.do_sample = true;
  const auto draw = [&](std::uint64_t seed, std::uint64_t prompt, std::uint32_t position) {
    return next_token(logits, options, seed, prompt, position);
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  std::set<std::int32_t> others;
  for (const auto token : {draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 2 + (1ull << 32), 3)})
    others.insert(token);
  EXPECT_EQ(others.size(), 5u) << "of a thousand tokens, so a collision is unlikely; it would stay the same";
}

}  // namespace
}  // namespace shardtune::train
