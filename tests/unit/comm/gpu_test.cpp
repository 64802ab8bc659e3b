// One rank on a real device, through the real NCCL.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "shardtune/comm/nccl.h"
#include "shardtune/comm/ordered_sum.h"
#include "shardtune/comm/self.h"

namespace shardtune::testing {
namespace {

/// Device memory with the values of a vector, or zeroed.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, size * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0, size * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    // The copy may still be on its way, and the streams of the tests do not wait for the default stream.
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  std::span<T> span() { return {static_cast<T*>(data_), size_}; }
  std::span<std::byte> bytes() { return std::as_writable_bytes(span()); }
  std::vector<T> values() const {
    std::vector<T> out(size_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(code);
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
