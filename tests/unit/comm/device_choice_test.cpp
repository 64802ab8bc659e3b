// Which device a rank takes, and what it says when it must not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "shardtune/comm/device_choice.h"
#include "shardtune/core/error.h"

namespace shardtune::testing {
namespace {

using ::testing::HasSubstr;

comm::DeviceId id(unsigned char value) {
  comm::DeviceId out{};
  out.back() = std::byte{value};
  return out;
}

std::string refusal(const std::vector<comm::DeviceId>& taken) {
  try {
    comm::refuse_shared_devices(taken, "node7");
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadNode);
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, RanksOfANodeTakeTheDevicesInTurn) {
  const comm::VisibleDevices four{.count = 4, .place = "rank 0 (node7)", .reason = ""};
  std::vector<int> chosen;
  for (int rank = 0; rank < 6; ++rank) chosen.push_back(comm::choose_device(rank, four));
  EXPECT_EQ(chosen, (std::vector<int>{0, 1, 2, 3, 0, 1}));
}

TEST(DeviceChoice, NoDeviceIsRefusedWithTheLibrarysReason) {
  try {
    comm::choose_device(0, {.count = 0, .place = "rank 3 (node7)", .reason = "no CUDA-capable device is detected"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadNode);
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_STREQ(error.what(),
                 "no CUDA device on rank 3 (node7): no CUDA-capable device is detected; start on a machine with a GPU "
                 "and its driver, and look at CUDA_VISIBLE_DEVICES");
  }
}

TEST(DeviceChoice, EachRankItsOwnDevice) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({id(1)}), "");
  // Also when the launcher shows each rank one device only: then all have taken number 0.
  EXPECT_EQ(refusal({id(1), id(2), id(3)}), "");
}

TEST(DeviceChoice, MoreRanksThanDevicesAreRefused) {
  EXPECT_EQ(refusal({id(1), id(2), id(1)}),
            "3 ranks run on node7 and see 2 CUDA devices between them: rank 2 of the node would share one with rank 0; "
            "start one rank per device, or allow ranks to share");
  EXPECT_THAT(refusal({id(5), id(5)}), HasSubstr("1 CUDA device between them: rank 1 of the node"));
}

}  // namespace
}  // namespace shardtune::testing
