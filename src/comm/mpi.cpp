#include "shardtune/comm/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "mpi_check.h"
#include "mpi_pending.h"
#include "mpi_shared_memory.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {
namespace {

class MpiCommunicator : public Communicator {
 public:
  /// Owns `comm`.
  MpiCommunicator(MPI_Comm comm, const MpiLimits& limits) : limits_(limits), comm_(comm) {
    SHARDTUNE_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    SHARDTUNE_MPI(MPI_Comm_rank(comm_, &rank_));
    SHARDTUNE_MPI(MPI_Comm_size(comm_, &size_));
  }
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> split(const ColorOf& color_of) override {
    MPI_Comm part = MPI_COMM_NULL;
    SHARDTUNE_MPI(MPI_Comm_split(comm_, color_of(rank_), rank_, &part));
    return std::make_unique<MpiCommunicator>(part, limits_);
  }
  std::unique_ptr<Communicator> split_by_node() override {
    MPI_Comm part = MPI_COMM_NULL;
    SHARDTUNE_MPI(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part));
    return std::make_unique<MpiCommunicator>(part, limits_);
  }
  std::unique_ptr<SharedMemory> allocate_shared(std::uint64_t bytes) override {
    return std::make_unique<MpiSharedMemory>(comm_, bytes);
  }
  const Counts& counts() const override { return counts_; }
  void reset_counts() override { counts_ = {}; }

  std::unique_ptr<Pending> all_gather_start(std::span<const std::byte> local, std::span<std::byte> full) override {
    const std::uint64_t bytes = local.size();
    SHARDTUNE_CHECK(full.size() == bytes * static_cast<std::uint64_t>(size_), "all-gather: {} bytes for {} ranks of {}",
                    full.size(), size_, bytes);
    copy_own(local.data(), full.data() + bytes * static_cast<std::uint64_t>(rank_), bytes);
    std::vector<MPI_Request> requests;
    for_each_peer([&](int to, int from) {
      receive(requests, full.subspan(bytes * static_cast<std::uint64_t>(from), bytes), from, kGatherTag);
      send(requests, local, to, kGatherTag);
    });
    counts_.count_all_gather(bytes, size_);
    return std::make_unique<MpiPending>(std::move(requests), limits_.deadline,
                                        fmt::format("all-gather of {} bytes", full.size()));
  }

  std::unique_ptr<Pending> exchange_start(std::span<const std::byte> data, std::span<std::byte> into) override {
    SHARDTUNE_CHECK(data.size() == into.size() && data.size() % static_cast<std::size_t>(size_) == 0,
                    "exchange: {} bytes sent, {} received, {} ranks", data.size(), into.size(), size_);
    const std::uint64_t bytes = data.size() / static_cast<std::uint64_t>(size_);
    const auto piece = [&](int r) { return bytes * static_cast<std::uint64_t>(r); };
    copy_own(data.data() + piece(rank_), into.data() + piece(rank_), bytes);
    std::vector<MPI_Request> requests;
    for_each_peer([&](int to, int from) {
      receive(requests, into.subspan(piece(from), bytes), from, kExchangeTag);
      send(requests, data.subspan(piece(to), bytes), to, kExchangeTag);
    });
    counts_.count_exchange(bytes, size_);
    return std::make_unique<MpiPending>(std::move(requests), limits_.deadline,
                                        fmt::format("exchange of {} bytes", data.size()));
  }

  void broadcast(std::span<std::byte> data, int root) override {
    counts_.count_control(size_);
    while (!data.empty()) {
      const std::size_t part = std::min<std::uint64_t>(data.size(), limits_.max_message_bytes);
      SHARDTUNE_MPI(MPI_Bcast(data.data(), static_cast<int>(part), MPI_BYTE, root, comm_));
      data = data.subspan(part);
    }
  }

  void barrier() override {
    counts_.count_control(size_);
    SHARDTUNE_MPI(MPI_Barrier(comm_));
  }

  void gather_control(std::span<const std::byte> local, std::span<std::byte> full) override {
    const Counts before = counts_;
    all_gather_start(local, full)->wait();
    counts_ = before;
    counts_.count_control(size_);
  }

 private:
  static constexpr int kGatherTag = 1, kExchangeTag = 2;

  static void copy_own(const std::byte* from, std::byte* to, std::uint64_t bytes) {
    if (from != to && bytes > 0) std::memcpy(to, from, bytes);
  }

  /// Calls with (to, from) at growing distance, so that no rank is everybody's first target.
  template <typename F>
  void for_each_peer(F f) {
    for (int distance = 1; distance < size_; ++distance)
      f((rank_ + distance) % size_, (rank_ - distance + size_) % size_);
  }

  void send(std::vector<MPI_Request>& requests, std::span<const std::byte> data, int to, int tag) {
    for (std::uint64_t at = 0; at < data.size(); at += limits_.max_message_bytes) {
      const auto part = static_cast<int>(std::min<std::uint64_t>(limits_.max_message_bytes, data.size() - at));
      SHARDTUNE_MPI(MPI_Isend(data.data() + at, part, MPI_BYTE, to, tag, comm_, &requests.emplace_back()));
    }
  }

  void receive(std::vector<MPI_Request>& requests, std::span<std::byte> into, int from, int tag) {
    for (std::uint64_t at = 0; at < into.size(); at += limits_.max_message_bytes) {
      const auto part = static_cast<int>(std::min<std::uint64_t>(limits_.max_message_bytes, into.size() - at));
      SHARDTUNE_MPI(MPI_Irecv(into.data() + at, part, MPI_BYTE, from, tag, comm_, &requests.emplace_back()));
    }
  }

  MpiLimits limits_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  Counts counts_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiLimits& limits) {
  SHARDTUNE_CHECK(limits.max_message_bytes > 0 && limits.max_message_bytes <= std::numeric_limits<int>::max(),
                  "message limit {} does not fit an MPI count", limits.max_message_bytes);
  MPI_Comm comm = MPI_COMM_NULL;
  SHARDTUNE_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  return std::make_unique<MpiCommunicator>(comm, limits);
}

}  // namespace shardtune::comm
