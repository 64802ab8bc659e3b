// The search against trying everything, on made-up costs that grow and shrink as the real ones do.
#include "../../../src/train/plan/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "../../../src/train/plan/fit_choices.h"

namespace shardtune::train::plan::test {
namespace {

constexpr std::int64_t kRowTokens = 2048;

/// Memory is the larger of two straight lines in the policy, as at the turn and behind the layers that are computed again.
class MadeUp : public Prober {
 public:
  std::int64_t bytes(const Setting& one) override {
    asked_.insert(one);
    const std::int64_t walks = one.order == "layer_first" ? one.micro_batches : 1;
    const std::int64_t weights = one.strategy == "FULL_SHARD" ? 1'000 : 8'000;
    const std::int64_t tokens = one.rows * kRowTokens;
    return weights + walks * tokens * 3 / 100 + one.chunk_tokens / 4 +
           std::max(walks * tokens * one.policy / 60, std::int64_t{700});
  }

  double seconds(const Setting& one) override {
    const double tokens = static_cast<double>(one.rows * one.micro_batches * kRowTokens);
    const double walks = one.order == "layer_first" ? 1 : static_cast<double>(one.micro_batches);
    return tokens * (4 - static_cast<double>(one.policy) / 40) + (one.strategy == "FULL_SHARD" ? 900 : 600) * walks +
           tokens / static_cast<double>(one.chunk_tokens);
  }

  std::size_t asked() const { return asked_.size(); }

 private:
  std::set<Setting> asked_;
};

Space whole_space() {
  return {.strategies = {"FULL_SHARD", "SHARD_GRAD_OP"},
          .orders = {"micro_batch_first", "layer_first"},
          .splits = splits_of(12, 100),
          .chunk_tokens = {1024, 2048, 4096},
          .row_tokens = kRowTokens,
          .policies = std::vector<std::string>(41)};
}

std::vector<Setting> everything(const Space& space) {
  std::vector<Setting> all;
  for (const std::string& strategy : space.strategies)
    for (const std::string& order : space.orders)
      for (const Split& split : space.splits)
        for (const std::int64_t chunk : space.chunks(split.rows))
          for (std::int64_t kept = 0; kept <= 40; ++kept)
            all.push_back({strategy, order, split.rows, split.micro_batches, chunk, kept});
  return all;
}

TEST(FitSearch, FindsWhatTryingEverythingFinds) {
  const Space space = whole_space();
  const std::vector<Setting> all = everything(space);
  for (const std::int64_t budget : {2'100, 2'500, 3'000, 5'000, 9'000, 11'000, 14'000, 40'000, 900'000}) {
    MadeUp costs;
    double best = std::numeric_limits<double>::infinity();
    for (const Setting& one : all)
      if (costs.bytes(one) <= budget) best = std::min(best, costs.seconds(one));
    MadeUp prober;
    const Found found = search(space, budget, prober);
    ASSERT_FALSE(found.fitting.empty()) << budget;
    EXPECT_DOUBLE_EQ(found.fitting.front().seconds, best) << budget;
    EXPECT_LE(found.fitting.front().bytes, budget);
    EXPECT_TRUE(std::ranges::is_sorted(found.fitting, {}, &Candidate::seconds));
    EXPECT_LT(prober.asked(), all.size() / 12) << budget;
  }
}

TEST(FitSearch, WithoutRoomTheLeastIsTold) {
  const Space space = whole_space();
  MadeUp costs;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Setting& one : everything(space)) least = std::min(least, costs.bytes(one));
  MadeUp prober;
  const Found found = search(space, 100, prober);
  EXPECT_TRUE(found.fitting.empty());
  EXPECT_EQ(found.least.bytes, least);
  EXPECT_EQ(found.least.setting.rows, 1);
  EXPECT_EQ(found.least.setting.strategy, "FULL_SHARD");
}

TEST(FitSearch, TakesTheLastPolicyThatFits) {
  Space space = whole_space();
  space.splits = {{2, 6}};
  space.strategies = {"FULL_SHARD"};
  space.orders = {"micro_batch_first"};
  space.chunk_tokens = {2048};
  space.row_tokens = 0;
  MadeUp costs;
  for (std::int64_t kept = 11; kept < 40; ++kept) {
    const Setting exact{"FULL_SHARD", "micro_batch_first", 2, 6, 2048, kept};
    MadeUp prober;
    EXPECT_EQ(search(space, costs.bytes(exact), prober).fitting.front().setting.policy, kept);
    EXPECT_LT(prober.asked(), 16U);
  }
}

TEST(FitSpace, SplitsKeepTheRowsOfAStep) {
  EXPECT_EQ(splits_of(6, 100), (std::vector<Split>{{1, 6}, {2, 3}, {3, 2}, {6, 1}}));
  EXPECT_EQ(splits_of(6, 3), (std::vector<Split>{{2, 3}, {3, 2}}));
}

TEST(FitSpace, ChunksEndWithTheWholeMicroBatch) {
  const Space space = whole_space();
  EXPECT_EQ(space.chunks(1), (std::vector<std::int64_t>{1024, 2048}));
  EXPECT_EQ(space.chunks(3), (std::vector<std::int64_t>{1024, 2048, 4096, 6144}));
}

options::RunOptions job(std::int64_t ranks) {
  options::RunOptions options;
  options.plan.world_size = ranks;
  options.plan.ranks_per_node = 8;
  options.train.per_device_train_batch_size = 2;
  options.train.gradient_accumulation_steps = 3;
  options.data.max_length = 512;
  return options;
}

TEST(FitChoices, WithoutGivenOptionsAllAreSearched) {
  const options::RunOptions options = job(8);
  const Space space = Choices(options, {}, 4).space();
  EXPECT_EQ(space.strategies, (std::vector<std::string>{"FULL_SHARD", "SHARD_GRAD_OP"}));
  EXPECT_EQ(space.orders.size(), 2U);
  EXPECT_EQ(space.splits, splits_of(6, 100));
  EXPECT_EQ(space.row_tokens, 512);
  EXPECT_EQ(space.policies,
            (std::vector<std::string>{"inputs_every_2", "recompute", "last_1", "last_2", "last_3", "keep"}));
}

TEST(FitChoices, HybridStrategiesWantSeveralWholeNodes) {
  const options::RunOptions two_nodes = job(16), one_and_a_half = job(12), alone = job(1);
  EXPECT_EQ(Choices(two_nodes, {}, 4).space().strategies.size(), 4U);
  EXPECT_EQ(Choices(one_and_a_half, {}, 4).space().strategies.size(), 2U);
  EXPECT_EQ(Choices(alone, {}, 4).space().strategies, std::vector<std::string>{"FULL_SHARD"});
}

TEST(FitChoices, GivenOptionsAreHeld) {
  options::RunOptions options = job(8);
  options.model.ffn_chunk_tokens = 300;
  options.model.activation_policy = "every_2";
  const std::set<std::string> given = {"ffn_chunk_tokens", "activation_policy", "fsdp_sharding_strategy",
                                       "accumulation_order", "per_device_train_batch_size"};
  const Choices choices(options, given, 4);
  const Space space = choices.space();
  EXPECT_EQ(space.strategies, std::vector<std::string>{"FULL_SHARD"});
  EXPECT_EQ(space.orders, std::vector<std::string>{"micro_batch_first"});
  EXPECT_EQ(space.splits, (std::vector<Split>{{2, 3}}));
  EXPECT_EQ(space.chunks(2), std::vector<std::int64_t>{300});
  EXPECT_EQ(space.policies, std::vector<std::string>{"every_2"});
  const Setting only{"FULL_SHARD", "micro_batch_first", 2, 3, 300, 0};
  EXPECT_TRUE(choices.named(only).empty());
  EXPECT_EQ(choices.apply(only).model.activation_policy, "every_2");
}

TEST(FitChoices, BothNumbersTogetherSayTheRowsOfAStep) {
  const options::RunOptions options = job(8);
  const Choices choices(options, {"per_device_train_batch_size", "gradient_accumulation_steps"}, 4);
  EXPECT_EQ(choices.space().splits, splits_of(6, 100));
}

TEST(FitChoices, ASettingAsOptions) {
  const options::RunOptions options = job(8);
  const Choices choices(options, {}, 4);
  const options::RunOptions applied = choices.apply({"SHARD_GRAD_OP", "layer_first", 3, 2, 1024, 2});
  EXPECT_EQ(applied.fsdp.sharding_strategy, "SHARD_GRAD_OP");
  EXPECT_EQ(applied.train.accumulation_order, "layer_first");
  EXPECT_EQ(applied.train.per_device_train_batch_size, 3);
  EXPECT_EQ(applied.train.gradient_accumulation_steps, 2);
  EXPECT_EQ(applied.model.ffn_chunk_tokens, 1024);
  EXPECT_EQ(applied.model.activation_policy, "last_1");
  EXPECT_EQ(choices.apply({"FULL_SHARD", "layer_first", 3, 2, 1024, 5}).model.activation_policy, "keep");
  EXPECT_EQ(choices.apply({"FULL_SHARD", "layer_first", 3, 2, 1024, 1}).model.activation_policy, "recompute");
}

}  // namespace
}  // namespace shardtune::train::plan::test
