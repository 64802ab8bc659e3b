#include <gtest/gtest.h>

#include "shardtune/train/threads.h"

namespace shardtune::train {
namespace {

TEST(Threads, BoundRanksUseTheirCoresAndOthersShare) {
  EXPECT_EQ(thread_share(/*allowed=*/8, /*online=*/32, /*ranks_on_node=*/4), 8);  // bound to eight cores
  EXPECT_EQ(thread_share(32, 32, 4), 8);  // not bound: a quarter each
  EXPECT_EQ(thread_share(2, 2, 1), 2);
  EXPECT_EQ(thread_share(2, 2, 4), 1);  // more ranks than cores
  EXPECT_EQ(thread_share(1, 2, 2), 1);
}

}  // namespace
}  // namespace shardtune::train
