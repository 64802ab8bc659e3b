#include <gtest/gtest.h>

#include "shardtune/comm/self.h"

namespace shardtune::testing {
namespace {

class CountsWaits : public comm::Pending {
 public:
  explicit CountsWaits(int& waits) : waits_(waits) {}
  void wait() override { ++waits_; }

 private:
  int& waits_;
};

TEST(Pending, WithoutAStreamOfItsOwnTheHostWaits) {
  int waits = 0;
  CountsWaits pending(waits);
  pending.wait_on({});
  EXPECT_EQ(waits, 1);
}

TEST(Pending, OneRankAloneHasTheResultAfterWaitOn) {
  const int local = 7;
  int full = 0;
  const auto self = comm::make_self_communicator();
  self->all_gather_start(std::as_bytes(std::span(&local, 1)), std::as_writable_bytes(std::span(&full, 1)))->wait_on({});
  EXPECT_EQ(full, 7);
}

}  // namespace
}  // namespace shardtune::testing
