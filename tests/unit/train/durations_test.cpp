// How long one piece of work takes, against sums by hand.
#include "../../../src/train/plan/durations.h"

#include <gtest/gtest.h>

#include <functional>

#include "plan_support.h"
#include "shardtune/core/error.h"

namespace shardtune::train::plan::test {
namespace {

void expect_internal_error(const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kInternal) << error.what();
  }
}

TEST(Durations, ProductsRunAtTheShareOfTheirTypesPeak) {
  Hardware hardware = simple_hardware();
  hardware.matmul_efficiency = 0.5;
  hardware.attention_efficiency = 0.25;
  hardware.kernel_launch_seconds = 3;
  const auto seconds = [&](ComputeKind kind, Dtype type) {
    return compute_seconds({.kind = kind, .type = type, .flops = 1000}, hardware);
  };
  EXPECT_DOUBLE_EQ(seconds(ComputeKind::kMatmul, Dtype::kBF16), 3 + 1000 / (100 * 0.5));
  EXPECT_DOUBLE_EQ(seconds(ComputeKind::kMatmul, Dtype::kF16), 3 + 1000 / (50 * 0.5));
  EXPECT_DOUBLE_EQ(seconds(ComputeKind::kMatmul, Dtype::kF32), 3 + 1000 / (20 * 0.5));
  EXPECT_DOUBLE_EQ(seconds(ComputeKind::kAttention, Dtype::kBF16), 3 + 1000 / (100 * 0.25));
  expect_internal_error([&] { seconds(ComputeKind::kMatmul, Dtype::kF64); });
}

TEST(Durations, TheSlowerOfArithmeticAndMemoryCounts) {
  Hardware hardware = simple_hardware();
  hardware.memory_efficiency = 0.8;
  ComputeWork work{.kind = ComputeKind::kMatmul, .type = Dtype::kBF16, .flops = 300, .bytes = 40};
  EXPECT_DOUBLE_EQ(compute_seconds(work, hardware), 5);  // 40 / (10 * 0.8), and 3 for the arithmetic
  work.flops = 700;
  EXPECT_DOUBLE_EQ(compute_seconds(work, hardware), 7);
  work.kind = ComputeKind::kRows;
  work.type = Dtype::kF64;  // no product, so it needs no peak
  EXPECT_DOUBLE_EQ(compute_seconds(work, hardware), 5);
}

TEST(Durations, InsideANodeTheLinkAloneCounts) {
  Hardware hardware = simple_hardware();
  hardware.intra_node_efficiency = 0.5;
  hardware.collective_launch_seconds = 7;
  const Transfer found =
      transfer({.kind = CollectiveKind::kAllGather, .bytes = 56, .ranks = 8, .ranks_per_node = 8}, hardware);
  EXPECT_DOUBLE_EQ(found.seconds, 28);  // 56 / (4 * 0.5)
  EXPECT_DOUBLE_EQ(found.launch_seconds, 7);
  EXPECT_EQ(found.path, Path::kLink);
}

TEST(Durations, OverNodesTheSlowerPathCounts) {
  Hardware hardware = simple_hardware();
  hardware.inter_node_efficiency = 0.8;
  CollectiveWork work{.kind = CollectiveKind::kExchange, .bytes = 450, .ranks = 16, .ranks_per_node = 8};
  // 30 bytes for each of 15 others: 240 for 8 ranks over the network, 210 for 7 over the link.
  EXPECT_DOUBLE_EQ(transfer(work, hardware).seconds, 300);  // 240 / (1 * 0.8)
  EXPECT_EQ(transfer(work, hardware).path, Path::kNetwork);
  hardware.network_bytes_per_second = 100;
  EXPECT_DOUBLE_EQ(transfer(work, hardware).seconds, 52.5);  // 210 / 4
  EXPECT_EQ(transfer(work, hardware).path, Path::kLink);
  work.ranks_per_node = 1;
  EXPECT_DOUBLE_EQ(transfer(work, hardware).seconds, 5.625);  // all 450 / (100 * 0.8)
}

TEST(Durations, OneRankOnlyLaunches) {
  Hardware hardware = simple_hardware();
  hardware.collective_launch_seconds = 2;
  EXPECT_EQ(transfer({.kind = CollectiveKind::kAllGather}, hardware).seconds, 0);
  EXPECT_EQ(control_seconds({}, hardware), 0);
}

TEST(Durations, ControlTakesRoundsOfALaunch) {
  Hardware hardware = simple_hardware();
  hardware.collective_launch_seconds = 2;
  const auto seconds = [&](int ranks) { return control_seconds({.ranks = ranks, .ranks_per_node = 1}, hardware); };
  EXPECT_DOUBLE_EQ(seconds(2), 2);
  EXPECT_DOUBLE_EQ(seconds(3), 4);
  EXPECT_DOUBLE_EQ(seconds(8), 6);
  EXPECT_DOUBLE_EQ(seconds(9), 8);
  EXPECT_DOUBLE_EQ(seconds(4096), 24);
  EXPECT_DOUBLE_EQ(control_seconds({.bytes = 5, .ranks = 2, .ranks_per_node = 1}, hardware), 2 + 5);
}

TEST(Durations, WorkThatCannotBeIsOurOwnMistake) {
  const Hardware hardware = simple_hardware();
  expect_internal_error([&] { transfer({.ranks = 0, .ranks_per_node = 0}, hardware); });
  expect_internal_error([&] { transfer({.ranks = 2, .ranks_per_node = 3}, hardware); });
  expect_internal_error([&] { transfer({.bytes = -1, .ranks = 2}, hardware); });
  expect_internal_error([&] { compute_seconds({.bytes = -1}, hardware); });
  expect_internal_error([&] { compute_seconds({.flops = -1}, hardware); });
}

}  // namespace
}  // namespace shardtune::train::plan::test
