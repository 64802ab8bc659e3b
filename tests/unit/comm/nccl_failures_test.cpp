// Errors, deadlines and ends of NCCL communicators, with CUDA and NCCL played by fake_cuda.cpp.
#include "shardtune/comm/agree.h"
#include "unit/comm/nccl_support.h"

namespace shardtune::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(NcclTest, AnErrorWhileWaitingAbortsEveryCommunicator) {
  const auto nccl = make();
  const auto part = nccl->split(0);
  const auto pending = gather(*nccl);
  exchange(*part)->wait();
  fake().not_ready = 100;
  fake().state = ncclRemoteError;
  EXPECT_THAT(failure([&] { pending->wait(); }),
              AllOf(StartsWith("all-gather of 16 bytes failed on "), HasSubstr(ncclGetErrorString(ncclRemoteError)),
                    HasSubstr("(the wire is cut)")));
  EXPECT_EQ(fake().count("abort 1"), 1);
  EXPECT_EQ(fake().count("abort 2"), 1);
  EXPECT_EQ(fake().not_ready, 99) << "it went on waiting after the error";
}

TEST_F(NcclTest, NothingWorksAfterIt) {
  const auto nccl = make();
  const auto pending = gather(*nccl);
  fake().state = ncclInternalError;
  EXPECT_THAT(failure([&] { pending->wait_on({streams_.compute.get()}); }), HasSubstr("the wire is cut"));
  fake().state = ncclSuccess;
  EXPECT_THAT(failure([&] { gather(*nccl); }), HasSubstr("given up"));
  EXPECT_THAT(failure([&] { pending->wait(); }), HasSubstr("given up"));
  EXPECT_THAT(failure([&] { pending->wait_on({streams_.compute.get()}); }), HasSubstr("given up"));
  EXPECT_EQ(fake().count("abort"), 1);
}

TEST_F(NcclTest, TheDeadlineEndsAWait) {
  const auto nccl = make(std::chrono::seconds(0));
  const auto pending = gather(*nccl);
  fake().not_ready = 1 << 30;
  EXPECT_THAT(failure([&] { pending->wait(); }),
              AllOf(StartsWith("all-gather of 16 bytes did not finish within 0 s on "), HasSubstr("another rank")));
  EXPECT_EQ(fake().count("abort 1"), 1);
}

TEST_F(NcclTest, TheDeadlineEndsAConnectionThatNeverComesAbout) {
  const auto nccl = make(std::chrono::seconds(0));
  fake().taken_up = ncclInProgress;
  fake().in_progress = 1 << 30;
  EXPECT_THAT(failure([&] { nccl->connect(); }), AllOf(StartsWith("ncclCommInitRankConfig("), HasSubstr("within 0 s")));
  EXPECT_EQ(fake().count("abort 1"), 1);
}

TEST_F(NcclTest, ACallThatIsRefusedNamesItsPlace) {
  const auto nccl = make();
  nccl->connect();
  fake().send_result = ncclInvalidArgument;
  EXPECT_THAT(failure([&] { exchange(*nccl); }),
              AllOf(StartsWith("exchange_pieces("), HasSubstr("nccl_communicator.cpp:"), HasSubstr("the wire is cut")));
  EXPECT_EQ(fake().open_groups, 0) << "a group was left open";
  EXPECT_EQ(fake().count("send"), 1);
  EXPECT_EQ(fake().count("abort 1"), 1);
}

TEST_F(NcclTest, WithoutAnIdAllRanksLearnOfIt) {
  const auto nccl = make();
  fake().id_result = ncclSystemError;
  EXPECT_THROW(nccl->connect(), comm::AgreedError);
  EXPECT_EQ(fake().communicators, 0);
}

TEST_F(NcclTest, TheEndFinalises) {
  make()->connect();
  EXPECT_EQ(fake().count("finalise"), 1);
  EXPECT_EQ(fake().count("destroy"), 1);
  EXPECT_EQ(fake().count("abort"), 0);
  make();
  EXPECT_EQ(fake().count("finalise"), 1) << "what was never connected has nothing to finalise";
}

TEST_F(NcclTest, TheEndWaitsForTheLibrary) {
  {
    const auto nccl = make();
    nccl->connect();
    fake().finalise_result = ncclInProgress;
    fake().in_progress = 3;
  }
  EXPECT_EQ(fake().in_progress, 0);
  EXPECT_EQ(fake().count("destroy"), 1);
}

TEST_F(NcclTest, TheEndHasADeadline) {
  {
    const auto nccl = make(std::chrono::seconds(0));
    nccl->connect();
    fake().finalise_result = ncclInProgress;
    fake().in_progress = 1 << 30;
  }
  EXPECT_EQ(fake().count("destroy"), 0);
  EXPECT_EQ(fake().count("abort 1"), 1);
}

TEST_F(NcclTest, AnErrorOnItsWayAbortsInsteadOfFinalising) {
  try {
    const auto nccl = make();
    nccl->connect();
    fail(ErrorClass::kBadStorage, "disk full");
  } catch (const Error&) {}
  EXPECT_EQ(fake().count("finalise"), 0);
  EXPECT_EQ(fake().count("abort 1"), 1);
}

}  // namespace
}  // namespace shardtune::testing
