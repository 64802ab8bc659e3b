// One rank on a real device, through the real NCCL.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "shardtune/comm/nccl.h"
#include "shardtune/comm/ordered_sum.h"
#include "shardtune/comm/self.h"
#include "support/device_array.h"

namespace shardtune::testing {
namespace {

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_device(); !reason.empty()) GTEST_SKIP() << reason;
    const auto self = comm::make_self_communicator();
    streams_ = comm::make_device_streams(comm::select_device(*self));
    nccl_ = comm::make_nccl_communicator(comm::make_self_communicator(), streams_);
  }

  static std::vector<float> numbers(std::size_t size) {
    std::vector<float> out(size);
    std::iota(out.begin(), out.end(), 1.0F);
    return out;
  }

  comm::DeviceStreams streams_;
  std::unique_ptr<comm::NcclCommunicator> nccl_;
};

TEST_F(Gpu, AGatherOfOneRankCopies) {
  DeviceArray<float> local(numbers(1003)), full(1003);
  nccl_->all_gather_start(local.bytes(), full.bytes())->wait();
  EXPECT_EQ(full.values(), numbers(1003));
  EXPECT_EQ(nccl_->counts(), comm::Counts{});
}

TEST_F(Gpu, ExchangeAndSumBehindEachOtherWithoutTheHost) {
  DeviceArray<float> sent(numbers(1003)), received(1003);
  DeviceArray<double> sum(1003);
  const comm::StreamRef reduce{streams_.reduce.get()}, compute{streams_.compute.get()};
  nccl_->exchange_start(sent.bytes(), received.bytes())->wait_on(compute);
  comm::add_in_rank_order(sum.span(), received.bytes(), Dtype::kF32, 1, compute);
  nccl_->synchronize(compute);
  nccl_->synchronize(reduce);
  const std::vector<float> expected = numbers(1003);
  EXPECT_EQ(sum.values(), std::vector<double>(expected.begin(), expected.end()));
}

TEST_F(Gpu, PartsAreAddedInRankOrder) {
  // As in ordered_sum_test.cpp: another order gives 5 and not 3.
  DeviceArray<double> parts({9007199254740992.0, 0, 1, 0, 1, 0, -9007199254740992.0, 0, 3, 5}), sum({0.0, 0.5});
  DeviceArray<std::uint16_t> narrow({0x3F80, 0xC020, 0x4040, 0x0000});  // 1, -2.5, 3, 0
  const comm::StreamRef reduce{streams_.reduce.get()};
  comm::add_in_rank_order(sum.span(), parts.bytes(), Dtype::kF64, 5, reduce);
  nccl_->synchronize(reduce);
  EXPECT_EQ(sum.values(), (std::vector<double>{3.0, 5.5}));
  comm::add_in_rank_order(sum.span(), narrow.bytes(), Dtype::kBF16, 2, reduce);
  nccl_->synchronize(reduce);
  EXPECT_EQ(sum.values(), (std::vector<double>{7.0, 3.0}));
}

}  // namespace
}  // namespace shardtune::testing
