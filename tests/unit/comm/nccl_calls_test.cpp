// Which calls the NCCL communicator makes, on which stream and in which order, with CUDA and NCCL played by fake_cuda.cpp.
#include "unit/comm/nccl_support.h"

namespace shardtune::testing {
namespace {

using ::testing::ElementsAre;

TEST_F(NcclTest, TransfersWaitForTheComputeStreamAndForEachOther) {
  const auto nccl = make();
  nccl->connect();
  fake().calls.clear();
  const auto first = gather(*nccl);
  const auto second = exchange(*nccl);
  EXPECT_THAT(fake().calls, ElementsAre("record 1 on compute", "gather waits for 1", "all-gather of 8 on gather",
                                        "record 3 on gather", "record 2 on gather", "record 1 on compute",
                                        "reduce waits for 1", "reduce waits for 2", "send 8 to 0 on reduce",
                                        "receive 8 from 0 on reduce", "send 8 to 1 on reduce",
                                        "receive 8 from 1 on reduce", "record 4 on reduce", "record 2 on reduce"));
  EXPECT_EQ(fake().open_groups, 0);
}

TEST_F(NcclTest, AlsoTransfersOfDifferentGroups) {
  const auto nccl = make();
  const auto part = nccl->split(0);
  const auto first = gather(*nccl);
  fake().calls.clear();
  const auto second = exchange(*part);
  // Event 2 is the end of the gather of the other communicator.
  EXPECT_EQ(fake().count("reduce waits for 2"), 1);
}

TEST_F(NcclTest, TheEndIsRecordedOnlyOnceTheCallIsTakenUp) {
  const auto nccl = make();
  nccl->connect();
  fake().calls.clear();
  fake().taken_up = ncclInProgress;
  fake().in_progress = 3;
  const auto pending = gather(*nccl);
  EXPECT_GE(fake().count("look"), 4);
  EXPECT_LT(fake().place("look"), fake().place("record 3 on gather"));
  EXPECT_EQ(fake().calls.back(), "record 2 on gather");
}

TEST_F(NcclTest, ConnectsOnceAndWithoutBlocking) {
  const auto nccl = make();
  nccl->barrier();
  EXPECT_EQ(fake().communicators, 0) << "control messages need no connection";
  fake().taken_up = ncclInProgress;
  fake().in_progress = 2;
  nccl->connect();
  gather(*nccl)->wait();
  EXPECT_EQ(fake().count("connect rank 0 of 2, non-blocking"), 1);
}

TEST_F(NcclTest, WaitPollsTheEndAndLooksAtTheCommunicator) {
  const auto nccl = make();
  const auto pending = gather(*nccl);
  fake().calls.clear();
  fake().not_ready = 5;
  pending->wait();
  EXPECT_EQ(fake().not_ready, 0);
  EXPECT_EQ(fake().count("look"), 5);
  fake().not_ready = 1;
  pending->wait();
  EXPECT_EQ(fake().not_ready, 1) << "it is waited for once";
}

TEST_F(NcclTest, WaitOnLetsAStreamWaitAndNotTheHost) {
  const auto nccl = make();
  const auto pending = gather(*nccl);
  fake().calls.clear();
  fake().not_ready = 1;
  pending->wait_on({streams_.compute.get()});
  EXPECT_EQ(fake().not_ready, 1);
  EXPECT_EQ(fake().calls.back(), "compute waits for 3");
  pending->wait_on({});
  EXPECT_EQ(fake().not_ready, 0) << "without a stream the host waits";
}

TEST_F(NcclTest, SynchronizePollsTheStream) {
  const auto nccl = make();
  gather(*nccl)->wait_on({streams_.compute.get()});
  fake().not_ready = 3;
  nccl->synchronize({streams_.compute.get()});
  EXPECT_EQ(fake().not_ready, 0);
}

TEST_F(NcclTest, EmptyTransfersAskNcclForNothing) {
  const auto nccl = make();
  nccl->all_gather_start({}, {})->wait();
  nccl->exchange_start({}, {})->wait();
  EXPECT_EQ(fake().count("all-gather") + fake().count("send"), 0);
}

TEST_F(NcclTest, EachPieceOfAnExchangeHasItsPlace) {
  const auto nccl = make();
  for (std::size_t i = 0; i < full_.size(); ++i) full_[i] = static_cast<std::byte>(i + 1);
  exchange(*nccl)->wait();
  EXPECT_EQ(std::string(fake().sent.at(1).begin(), fake().sent.at(1).end()), "\x9\xA\xB\xC\xD\xE\xF\x10");
  EXPECT_EQ(received_, full_) << "the fake's wire brings back from each rank what went to it";
}

TEST_F(NcclTest, CountsAreThoseOfTheInterface) {
  const auto nccl = make();
  gather(*nccl)->wait();
  exchange(*nccl)->wait();
  nccl->gather_values(1);
  nccl->barrier();
  nccl->broadcast(local_, 0);
  const comm::Counts expected{
      .all_gathers = 1, .all_gather_bytes = 8, .exchanges = 1, .exchange_bytes = 8, .control = 3};
  EXPECT_EQ(nccl->counts(), expected);
  nccl->reset_counts();
  EXPECT_EQ(nccl->counts(), comm::Counts{});
}

TEST_F(NcclTest, OneRankCountsNothing) {
  const auto nccl = comm::make_nccl_communicator(comm::make_self_communicator(), streams_);
  std::vector<std::byte> own(8);
  nccl->all_gather_start(local_, own)->wait();
  nccl->exchange_start(own, local_)->wait();
  nccl->barrier();
  EXPECT_EQ(own, std::vector<std::byte>(8, std::byte{1}));
  EXPECT_EQ(nccl->counts(), comm::Counts{});
}

}  // namespace
}  // namespace shardtune::testing
