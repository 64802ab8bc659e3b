// Gathers and exchanges between devices, against the MPI communicator with the same contents in host memory. A device per rank.
#include <cuda_runtime_api.h>

#include "shardtune/comm/nccl.h"
#include "shardtune/comm/ordered_sum.h"
#include "support/device_array.h"
#include "support/mpi_world.h"

namespace shardtune::testing {
namespace {

/// Whether every rank sees as many devices as there are ranks; the same answer on all.
bool enough_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (const int visible : world().gather_values(count))
    if (visible < world().size()) return false;
  return true;
}

class NcclRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!enough_devices()) GTEST_SKIP() << "fewer CUDA devices than the " << world().size() << " ranks";
    streams_ = comm::make_device_streams(comm::select_device(world()));
    nccl_ = comm::make_nccl_communicator(comm::make_mpi_communicator(), streams_);
  }

  /// Values that differ by rank and place and have no short sum in fp32.
  static std::vector<float> numbers(std::size_t size) {
    std::vector<float> out(size);
    for (std::size_t i = 0; i < size; ++i)
      out[i] = 1.0F / static_cast<float>(i + 1) + static_cast<float>(world().rank()) * 1e6F;
    return out;
  }
  std::size_t ranks() const { return static_cast<std::size_t>(world().size()); }

  comm::DeviceStreams streams_;
  std::unique_ptr<comm::NcclCommunicator> nccl_;
};

TEST_F(NcclRanks, AGatherBringsWhatMpiBrings) {
  for (const std::size_t size : {0u, 1u, 1003u, 1u << 20}) {
    const std::vector<float> local = numbers(size);
    std::vector<float> expected(size * ranks());
    world().all_gather_start(std::as_bytes(std::span(local)), std::as_writable_bytes(std::span(expected)))->wait();
    DeviceArray<float> device_local(local), full(size * ranks());
    nccl_->all_gather_start(device_local.bytes(), full.bytes())->wait();
    EXPECT_EQ(full.values(), expected) << size << " elements";
  }
}

TEST_F(NcclRanks, AReduceScatterGivesTheBitsOfTheHost) {
  const std::size_t piece = 1003;
  const std::vector<float> send = numbers(piece * ranks());
  std::vector<float> received(send.size());
  world().exchange_start(std::as_bytes(std::span(send)), std::as_writable_bytes(std::span(received)))->wait();
  std::vector<double> expected(piece);
  for (std::size_t r = 0; r < ranks(); ++r)
    for (std::size_t i = 0; i < piece; ++i) expected[i] += static_cast<double>(received[r * piece + i]);
  DeviceArray<float> device_send(send), device_received(send.size());
  DeviceArray<double> sum(piece);
  const comm::StreamRef reduce{streams_.reduce.get()};
  nccl_->exchange_start(device_send.bytes(), device_received.bytes())->wait_on(reduce);
  comm::add_in_rank_order(sum.span(), device_received.bytes(), Dtype::kF32, world().size(), reduce);
  nccl_->synchronize(reduce);
  EXPECT_EQ(device_received.values(), received);
  EXPECT_EQ(sum.values(), expected);
}

TEST_F(NcclRanks, CountsAreThoseOfMpi) {
  const std::uint64_t others = ranks() - 1;
  DeviceArray<float> local(250), full(250 * ranks()), received(250 * ranks());
  nccl_->all_gather_start(local.bytes(), full.bytes())->wait();
  nccl_->exchange_start(full.bytes(), received.bytes())->wait();
  const comm::Counts expected{
      .all_gathers = 1, .all_gather_bytes = 1000 * others, .exchanges = 1, .exchange_bytes = 1000 * others};
  EXPECT_EQ(nccl_->counts(), expected);
}

}  // namespace
}  // namespace shardtune::testing
