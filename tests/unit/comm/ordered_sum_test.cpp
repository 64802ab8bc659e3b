// What a thread of the kernel computes, on the host: the kernel calls the same function.
#include <gtest/gtest.h>

#include <vector>

#include "comm/ordered_sum_element.h"

namespace shardtune::testing {
namespace {

TEST(OrderedSum, GoesThroughTheRanksInOrder) {
  // 2^53 + 1 has no fp64 of its own: only in this order do the two ones get lost, and 2^53 is cancelled before the 3.
  const std::vector<double> parts = {9007199254740992.0, 0, 1, 0, 1, 0, -9007199254740992.0, 0, 3, 5};
  EXPECT_EQ(comm::add_parts(0.0, parts.data(), 5, 2), 3.0);
  EXPECT_EQ(comm::add_parts(0.5, parts.data() + 1, 5, 2), 5.5);
}

TEST(OrderedSum, FloatsAreAddedInDoublePrecision) {
  const std::vector<float> parts = {16777216.0F, 1.0F, 1.0F};
  EXPECT_EQ(comm::add_parts(0.0, parts.data(), 3, 1), 16777218.0);
}

TEST(OrderedSum, Bfloat16IsTheUpperHalfOfAFloat) {
  const std::vector<comm::Bfloat16Bits> parts = {{0x3F80}, {0xC020}, {0x0001}, {0x8000}};
  EXPECT_EQ(comm::widened(parts[0]), 1.0);
  EXPECT_EQ(comm::widened(parts[1]), -2.5);
  EXPECT_EQ(comm::widened(parts[2]), 0x1p-133);
  EXPECT_EQ(comm::add_parts(10.0, parts.data(), 2, 1), 8.5);
}

}  // namespace
}  // namespace shardtune::testing
