#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "unit/comm/fake_cuda.h"

namespace shardtune::testing {

/// Rank 0 of two, alone in the process: what goes to the other rank is lost, what comes from it is zero.
class FirstOfTwo : public comm::Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<comm::Pending> all_gather_start(std::span<const std::byte>, std::span<std::byte>) override {
    return nullptr;
  }
  std::unique_ptr<comm::Pending> exchange_start(std::span<const std::byte>, std::span<std::byte>) override {
    return nullptr;
  }
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  void gather_control(std::span<const std::byte>, std::span<std::byte>) override {}
  std::unique_ptr<comm::Communicator> split(const ColorOf&) override { return std::make_unique<FirstOfTwo>(); }
  std::unique_ptr<comm::Communicator> split_by_node() override { return std::make_unique<FirstOfTwo>(); }
  std::unique_ptr<comm::SharedMemory> allocate_shared(std::uint64_t) override { return nullptr; }
  const comm::Counts& counts() const override { return counts_; }
  void reset_counts() override {}

 private:
  comm::Counts counts_;
};

class NcclTest : public ::testing::Test {
 protected:
  /// A communicator of two ranks over the fake, with buffers for gathers (8 bytes a rank) and exchanges.
  std::unique_ptr<comm::NcclCommunicator> make(std::chrono::seconds deadline = std::chrono::seconds(1800)) {
    return comm::make_nccl_communicator(std::make_unique<FirstOfTwo>(), streams_, {.deadline = deadline});
  }
  std::unique_ptr<comm::Pending> gather(comm::Communicator& nccl) { return nccl.all_gather_start(local_, full_); }
  std::unique_ptr<comm::Pending> exchange(comm::Communicator& nccl) { return nccl.exchange_start(full_, received_); }

  /// The text of the Error(kCommunication) that `action` must throw.
  template <typename F>
  static std::string failure(F action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.error_class(), ErrorClass::kCommunication) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  comm::DeviceStreams streams_ = fake_streams();
  std::vector<std::byte> local_ = std::vector<std::byte>(8, std::byte{1});
  std::vector<std::byte> full_ = std::vector<std::byte>(16), received_ = std::vector<std::byte>(16);
};

}  // namespace shardtune::testing
