#include <utility>

#include "nccl_handle.h"
#include "nccl_pending.h"
#include "shardtune/comm/agree.h"
#include "shardtune/comm/nccl.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {
namespace {

class NcclTransfers : public NcclCommunicator {
 public:
  NcclTransfers(std::unique_ptr<Communicator> host, std::shared_ptr<NcclDevice> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Communicator& host() override { return *host_; }

  void connect() override {
    if (handle_) return;
    device_->require_alive();
    ncclUniqueId id{};
    agree_on_root(*host_, [&] { SHARDTUNE_NCCL_CALL(ncclGetUniqueId(&id)); });
    host_->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    SHARDTUNE_CUDA_CALL(cudaSetDevice(device_->streams().device));
    auto handle = std::make_unique<NcclHandle>(device_);
    handle->connect(id, rank(), size());
    handle_ = std::move(handle);
  }

  std::unique_ptr<Pending> all_gather_start(std::span<const std::byte> local, std::span<std::byte> full) override {
    SHARDTUNE_CHECK(full.size() == local.size() * ranks(), "all-gather: {} bytes for {} ranks of {}", full.size(),
                    size(), local.size());
    connect();
    cudaStream_t stream = device_->streams().gather.get();
    OwnedEvent end = device_->run_on(stream, [&] {
      if (local.empty()) return;
      SHARDTUNE_NCCL_CHECK(*handle_,
                           ncclAllGather(local.data(), full.data(), local.size(), ncclUint8, handle_->get(), stream));
    });
    counts_.count_all_gather(local.size(), size());
    return pending(std::move(end), fmt::format("all-gather of {} bytes", full.size()));
  }

  std::unique_ptr<Pending> exchange_start(std::span<const std::byte> send, std::span<std::byte> receive) override {
    SHARDTUNE_CHECK(send.size() == receive.size() && send.size() % ranks() == 0,
                    "exchange: {} bytes sent, {} received, {} ranks", send.size(), receive.size(), size());
    connect();
    cudaStream_t stream = device_->streams().reduce.get();
    OwnedEvent end = device_->run_on(stream, [&] {
      if (!send.empty()) SHARDTUNE_NCCL_CHECK(*handle_, exchange_pieces(send, receive, stream));
    });
    counts_.count_exchange(send.size() / ranks(), size());
    return pending(std::move(end), fmt::format("exchange of {} bytes", send.size()));
  }

  void broadcast(std::span<std::byte> data, int root) override {
    count_control();
    host_->broadcast(data, root);
  }
  void barrier() override {
    count_control();
    host_->barrier();
  }
  void gather_control(std::span<const std::byte> local, std::span<std::byte> full) override {
    count_control();
    host_->gather_control(local, full);
  }
  std::unique_ptr<Communicator> split(const ColorOf& color_of) override {
    return std::make_unique<NcclTransfers>(host_->split(color_of), device_);
  }
  std::unique_ptr<Communicator> split_by_node() override {
    return std::make_unique<NcclTransfers>(host_->split_by_node(), device_);
  }
  std::unique_ptr<SharedMemory> allocate_shared(std::uint64_t bytes) override { return host_->allocate_shared(bytes); }

  void synchronize(StreamRef stream) override {
    if (stream.stream == nullptr) return;
    device_->wait_until([&] { return is_done(cudaStreamQuery(stream.stream)); }, "the work on a stream");
  }

  const Counts& counts() const override { return counts_; }
  void reset_counts() override { counts_ = {}; }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  void count_control() { counts_.count_control(size()); }

  /// One send and one receive per rank, itself included, which NCCL runs as one operation; ncclAlltoAll is the same but needs
  /// version 2.28. The group is closed after an error, too: NCCL would hold back all later calls otherwise.
  ncclResult_t exchange_pieces(std::span<const std::byte> send, std::span<std::byte> receive, cudaStream_t stream) {
    const std::size_t bytes = send.size() / ranks();
    ncclResult_t result = ncclGroupStart();
    const auto go_on = [&] { return result == ncclSuccess || result == ncclInProgress; };
    if (!go_on()) return result;
    for (std::size_t r = 0; r < ranks() && go_on(); ++r) {
      const int peer = static_cast<int>(r);
      result = ncclSend(send.data() + r * bytes, bytes, ncclUint8, peer, handle_->get(), stream);
      if (go_on()) result = ncclRecv(receive.data() + r * bytes, bytes, ncclUint8, peer, handle_->get(), stream);
    }
    const ncclResult_t end = ncclGroupEnd();
    return go_on() ? end : result;
  }

  std::unique_ptr<Pending> pending(OwnedEvent end, std::string what) {
    return std::make_unique<NcclPending>(device_, std::move(end), std::move(what));
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<NcclDevice> device_;
  std::unique_ptr<NcclHandle> handle_;  ///< none before connect()
  Counts counts_;
};

}  // namespace

std::unique_ptr<NcclCommunicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                         const DeviceStreams& streams, const NcclLimits& limits) {
  SHARDTUNE_CHECK(streams.device >= 0, "no device");
  return std::make_unique<NcclTransfers>(std::move(host), std::make_shared<NcclDevice>(streams, limits));
}

}  // namespace shardtune::comm
