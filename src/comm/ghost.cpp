#include "shardtune/comm/ghost.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "shardtune/core/error.h"
#include "shardtune/core/work.h"

namespace shardtune::comm {
namespace {

class GhostPending : public Pending {
 public:
  explicit GhostPending(std::optional<std::size_t> handle) : handle_(handle) {}
  void wait() override {
    if (handle_ && work_listener() != nullptr) work_listener()->await(*handle_);
  }

 private:
  std::optional<std::size_t> handle_;
};

/// Addresses without memory: only their number counts.
class GhostMemory : public SharedMemory {
 public:
  explicit GhostMemory(std::uint64_t bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() override { return {static_cast<std::byte*>(nullptr), bytes_}; }
  void fence() override {}

 private:
  std::uint64_t bytes_;
};

class GhostCommunicator : public Communicator {
 public:
  /// `members`: the job's ranks in this group, ascending; `self` is one of them.
  GhostCommunicator(int self, std::vector<int> members, int ranks_per_node)
      : self_(self), members_(std::move(members)), per_node_(ranks_per_node) {
    rank_ = static_cast<int>(std::ranges::find(members_, self_) - members_.begin());
    neighbours_ = static_cast<int>(
        std::ranges::count_if(members_, [&](int other) { return other / per_node_ == self_ / per_node_; }));
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  std::unique_ptr<Pending> all_gather_start(std::span<const std::byte> local, std::span<std::byte> full) override {
    SHARDTUNE_CHECK(full.size() == local.size() * members_.size(), "all-gather: {} bytes for {} ranks of {}",
                    full.size(), members_.size(), local.size());
    counts_.count_all_gather(local.size(), size());
    return start(CollectiveKind::kAllGather, local.size() * (members_.size() - 1));
  }

  std::unique_ptr<Pending> exchange_start(std::span<const std::byte> send, std::span<std::byte> receive) override {
    SHARDTUNE_CHECK(send.size() == receive.size() && send.size() % members_.size() == 0,
                    "exchange: {} bytes sent, {} received, {} ranks", send.size(), receive.size(), members_.size());
    const std::uint64_t piece = send.size() / members_.size();
    counts_.count_exchange(piece, size());
    return start(CollectiveKind::kExchange, piece * (members_.size() - 1));
  }

  void broadcast(std::span<std::byte>, int) override { control(0); }
  void barrier() override { control(0); }
  void gather_control(std::span<const std::byte> local, std::span<std::byte> full) override {
    SHARDTUNE_CHECK(full.size() == local.size() * members_.size(), "control gather: {} bytes for {} ranks of {}",
                    full.size(), members_.size(), local.size());
    for (std::size_t rank = 0; rank < members_.size(); ++rank)
      std::ranges::copy(local, full.subspan(rank * local.size()).begin());
    control(local.size() * (members_.size() - 1));
  }

  std::unique_ptr<Communicator> split(const ColorOf& color_of) override {
    const auto color = color_of(rank_);
    std::vector<int> same;
    for (int rank = 0; rank < size(); ++rank)
      if (color_of(rank) == color) same.push_back(members_[static_cast<std::size_t>(rank)]);
    return std::make_unique<GhostCommunicator>(self_, std::move(same), per_node_);
  }
  std::unique_ptr<Communicator> split_by_node() override {
    return split([&](int rank) { return members_[static_cast<std::size_t>(rank)] / per_node_; });
  }
  std::unique_ptr<SharedMemory> allocate_shared(std::uint64_t bytes) override {
    return std::make_unique<GhostMemory>(bytes);
  }

  const Counts& counts() const override { return counts_; }
  void reset_counts() override { counts_ = {}; }

 private:
  CollectiveWork work(CollectiveKind kind, std::uint64_t bytes) const {
    return {.kind = kind, .bytes = static_cast<double>(bytes), .ranks = size(), .ranks_per_node = neighbours_};
  }
  std::unique_ptr<Pending> start(CollectiveKind kind, std::uint64_t bytes) const {
    if (members_.size() == 1 || work_listener() == nullptr) return std::make_unique<GhostPending>(std::nullopt);
    return std::make_unique<GhostPending>(work_listener()->start(work(kind, bytes)));
  }
  void control(std::uint64_t bytes) {
    counts_.count_control(size());
    if (members_.size() > 1 && work_listener() != nullptr)
      work_listener()->start(work(CollectiveKind::kControl, bytes));
  }

  int self_, rank_ = 0, neighbours_ = 1;
  std::vector<int> members_;
  int per_node_;
  Counts counts_;
};

}  // namespace

std::unique_ptr<Communicator> make_ghost_communicator(int rank, int ranks, int ranks_per_node) {
  if (ranks < 1 || rank < 0 || rank >= ranks) fail(ErrorClass::kUsage, "there is no rank {} of {} ranks", rank, ranks);
  if (ranks_per_node < 1) fail(ErrorClass::kUsage, "{} ranks on a node: at least 1 is needed", ranks_per_node);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<GhostCommunicator>(rank, std::move(all), ranks_per_node);
}

}  // namespace shardtune::comm
