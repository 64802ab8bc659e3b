// Options to policies: what each strategy means, and meshes that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardtune/core/error.h"
#include "shardtune/fsdp/policy.h"

namespace shardtune::fsdp {
namespace {

FsdpOptions with(const std::string& strategy) {
  FsdpOptions options;
  options.sharding_strategy = strategy;
  return options;
}

/// The message of the usage error that the options must give.
std::string refusal(const FsdpOptions& options, int ranks = 8, int node_ranks = 4) {
  try {
    make_policy(options, ranks, node_ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Policy, StrategiesOf8RanksOn2Nodes) {
  struct Row {
    const char* strategy;
    int shard_size;
    Reshard reshard;
  };
  for (const Row& row : {Row{"FULL_SHARD", 8, Reshard::kAfterForward}, Row{"SHARD_GRAD_OP", 8, Reshard::kAfterBackward},
                         Row{"NO_SHARD", 1, Reshard::kAfterForward}, Row{"HYBRID_SHARD", 4, Reshard::kAfterForward},
                         Row{"_HYBRID_SHARD_ZERO2", 4, Reshard::kAfterBackward}}) {
    const Policy policy = make_policy(with(row.strategy), 8, 4);
    EXPECT_EQ(policy.shard_size, row.shard_size) << row.strategy;
    EXPECT_EQ(policy.reshard, row.reshard) << row.strategy;
  }
}

TEST(Policy, ReshardAfterForwardAsFsdp2HasIt) {
  const auto reshard = [](const std::string& wish) {
    FsdpOptions options;
    options.version = 2;
    options.reshard_after_forward = wish;
    return make_policy(options, 8, 4);
  };
  EXPECT_EQ(reshard("").reshard, Reshard::kAfterForward);
  EXPECT_EQ(reshard("true").reshard, Reshard::kAfterForward);
  EXPECT_EQ(reshard("True").reshard, Reshard::kAfterForward);
  EXPECT_EQ(reshard("false").reshard, Reshard::kAfterBackward);
  EXPECT_EQ(reshard("False").reshard, Reshard::kAfterBackward);
  EXPECT_EQ(reshard("8").reshard, Reshard::kAfterForward);
  EXPECT_EQ(reshard("1").reshard, Reshard::kAfterBackward);
  EXPECT_EQ(reshard("4").reshard, Reshard::kToInnerGroup);
  EXPECT_EQ(reshard("4").inner_size, 4);
}

TEST(Policy, Version1MayWriteTheStrategyThere) {  // as Accelerate's fsdp_config.yaml does
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP"}) {
    FsdpOptions options = with(strategy);
    options.reshard_after_forward = "SHARD_GRAD_OP";
    EXPECT_EQ(make_policy(options, 8, 4).reshard, Reshard::kAfterBackward);
  }
  FsdpOptions options = with("SHARD_GRAD_OP");
  options.reshard_after_forward = "NO_SHARD";
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("NO_SHARD contradicts --fsdp_sharding_strategy SHARD_GRAD_OP"));
  options = with("FULL_SHARD");
  options.version = 2;
  options.reshard_after_forward = "SHARD_GRAD_OP";
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("is not true, false or a number"));
}

TEST(Policy, StrategiesThatKeepDoNotLetGo) {
  for (const char* strategy : {"SHARD_GRAD_OP", "NO_SHARD"})
    for (const char* wish : {"true", "4"}) {
      FsdpOptions options = with(strategy);
      options.reshard_after_forward = wish;
      EXPECT_THAT(refusal(options), ::testing::HasSubstr(std::string(wish) + " contradicts --fsdp_sharding_strategy"));
      options.reshard_after_forward = "false";
      EXPECT_NO_THROW(make_policy(options, 8, 4));
    }
}

TEST(Policy, MeshesThatCannotBe) {
  FsdpOptions options = with("HYBRID_SHARD");
  options.shard_group_size = 3;
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("3 ranks do not divide the 8 ranks"));
  options.shard_group_size = 16;
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("16 ranks do not divide the 8 ranks"));
  options.shard_group_size = 0;
  EXPECT_THAT(refusal(options, 8, 3), ::testing::HasSubstr("give a --shard_group_size that does"));
  options = with("FULL_SHARD");
  options.shard_group_size = 4;
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("needs --fsdp_sharding_strategy HYBRID_SHARD"));
  options = with("NO_SHARD");
  options.shard_group_size = 2;
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("contradicts --fsdp_sharding_strategy NO_SHARD"));
  options = {};
  for (const char* wish : {"3", "16", "0", "-1", "yes", "2.0"}) {
    options.reshard_after_forward = wish;
    EXPECT_THAT(refusal(options), ::testing::HasSubstr("--fsdp_reshard_after_forward")) << wish;
  }
  options = with("SHARD_GRAD_OP");
  options.version = 2;
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("--fsdp_reshard_after_forward false"));
}

/// An embedding of 100 parameters, `layers` layers of 40, a head of 10.
std::vector<model::UnitSpec> stages(std::size_t layers) {
  std::vector<model::UnitSpec> all(layers + 2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].name = "stage " + std::to_string(i);
    all[i].add({.name = "w", .shape = {i == 0 ? 100 : i == layers + 1 ? 10 : 40}});
  }
  return all;
}

TEST(Wrap, LayersOneByOneBySizeOrAllInOne) {
  using Units = std::vector<std::vector<std::size_t>>;
  FsdpOptions options;
  EXPECT_EQ(wrap(stages(3), options), (Units{{0}, {1}, {2}, {3}, {4}}));
  options.auto_wrap_policy = "NO_WRAP";
  EXPECT_EQ(wrap(stages(3), options), (Units{{0, 1, 2, 3, 4}}));
  options.auto_wrap_policy = "SIZE_BASED_WRAP";
  options.min_num_params = 80;
  EXPECT_EQ(wrap(stages(5), options), (Units{{0}, {1, 2}, {3, 4}, {5}, {6}}));
  options.min_num_params = 81;
  EXPECT_EQ(wrap(stages(5), options), (Units{{0}, {1, 2, 3}, {4, 5}, {6}}));
  options.min_num_params = 1'000'000;
  EXPECT_EQ(wrap(stages(2), options), (Units{{0}, {1, 2}, {3}}));
  options.min_num_params = 39;
  EXPECT_THROW(wrap(stages(2), options), Error);
}

}  // namespace
}  // namespace shardtune::fsdp
