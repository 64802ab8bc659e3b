// What the real libraries say when there is no device: all are hidden, so the answer is the same on every machine, apart from
// the reason (no driver, or no device).
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "shardtune/comm/agree.h"
#include "shardtune/comm/nccl.h"
#include "shardtune/comm/self.h"

namespace shardtune::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Before main(): CUDA reads the variable once, in its first call.
const int kHidden = setenv("CUDA_VISIBLE_DEVICES", "", 1);

TEST(NoDevice, IsRefusedInOneLineWithTheReason) {
  ASSERT_EQ(kHidden, 0);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  ASSERT_NE(code, cudaSuccess) << count << " devices, although all are hidden";
  const auto self = comm::make_self_communicator();
  try {
    comm::select_device(*self);
    FAIL();
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadNode);
    const std::string text = error.what();
    EXPECT_THAT(text, StartsWith("no CUDA device on "));
    EXPECT_THAT(text, HasSubstr(cudaGetErrorString(code)));
    EXPECT_THAT(text, HasSubstr("CUDA_VISIBLE_DEVICES"));
    EXPECT_THAT(text, Not(HasSubstr("\n")));
    RecordProperty("refusal", text);
  }
}

TEST(NoDevice, StreamsNameTheFailedCall) {
  try {
    comm::make_device_streams(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadNode);
    EXPECT_THAT(error.what(), HasSubstr("cudaSetDevice(device) failed at "));
    EXPECT_THAT(error.what(), HasSubstr("device.cpp:"));
  }
}

}  // namespace
}  // namespace shardtune::testing
