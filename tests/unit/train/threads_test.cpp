#include <gtest/gtest.h>

#include "shardtune/train/threads.h"

namespace shardtune::train {
namespace {

TEST(Threads, RanksWithTheSameProcessorsShareThem) {
  EXPECT_EQ(thread_share(/*allowed=*/8, /*sharing=*/1), 8);  // bound to eight cores of its own
  EXPECT_EQ(thread_share(32, 4), 8);  // not bound: a quarter each
  EXPECT_EQ(thread_share(2, 4), 1);  // more ranks than cores
  EXPECT_EQ(thread_share(1, 1), 1);
}

}  // namespace
}  // namespace shardtune::train
