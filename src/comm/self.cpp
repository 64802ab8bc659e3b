#include "shardtune/comm/self.h"

#include "shardtune/core/error.h"

namespace shardtune::comm {
namespace {

class Done : public Pending {
 public:
  void wait() override {}
};

class OwnMemory : public SharedMemory {
 public:
  explicit OwnMemory(std::uint64_t bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() override { return bytes_; }
  void fence() override {}

 private:
  std::vector<std::byte> bytes_;
};

class SelfCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Pending> all_gather_start(std::span<const std::byte> local, std::span<std::byte> full) override {
    copy(local, full);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> exchange_start(std::span<const std::byte> send, std::span<std::byte> receive) override {
    copy(send, receive);
    return std::make_unique<Done>();
  }
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  void gather_control(std::span<const std::byte> local, std::span<std::byte> full) override { copy(local, full); }
  std::unique_ptr<Communicator> split(const ColorOf&) override { return std::make_unique<SelfCommunicator>(); }
  std::unique_ptr<Communicator> split_by_node() override { return std::make_unique<SelfCommunicator>(); }
  std::unique_ptr<SharedMemory> allocate_shared(std::uint64_t bytes) override {
    return std::make_unique<OwnMemory>(bytes);
  }
  const Counts& counts() const override { return counts_; }
  void reset_counts() override {}

 private:
  static void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    SHARDTUNE_CHECK(from.size() == to.size(), "{} bytes into {}", from.size(), to.size());
    if (from.data() != to.data() && !from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }

  Counts counts_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace shardtune::comm
