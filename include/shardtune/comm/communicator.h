#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

struct CUstream_st;  // CUDA's own name for what a cudaStream_t points to

namespace shardtune::comm {

/// A device stream, not owned: a cudaStream_t without CUDA's headers. Null is the host; CUDA's default stream, whose handle
/// is null as well, goes by the name cudaStreamLegacy here.
struct StreamRef {
  CUstream_st* stream = nullptr;
};

/// A collective that was started. wait() returns when the receive buffer is complete and both buffers may be used again.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks. Throws Error(kCommunication) on a library error or when the deadline passes.
  virtual void wait() = 0;
  /// Makes `stream` wait instead of the host: work queued on it from now on finds what wait() promises, and the buffers must
  /// live until that work is done. Throws as wait() does. A communicator over host memory has nothing to queue: it waits here.
  virtual void wait_on(StreamRef /*stream*/) { wait(); }
};

/// What was moved, asserted by tests. Bytes are those that cross between ranks: received for gathers, sent for exchanges. One
/// rank alone moves nothing and counts nothing.
struct Counts {
  std::uint64_t all_gathers = 0;
  std::uint64_t all_gather_bytes = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t exchange_bytes = 0;
  std::uint64_t control = 0;  ///< small gathers of scalars and verdicts, broadcasts, barriers

  /// A gather of `local_bytes` of each of `ranks`, an exchange of a piece of `piece_bytes` with each, a control call among
  /// them.
  void count_all_gather(std::uint64_t local_bytes, int ranks);
  void count_exchange(std::uint64_t piece_bytes, int ranks);
  void count_control(int ranks) { control += ranks > 1; }

  friend bool operator==(const Counts&, const Counts&) = default;
  Counts& operator+=(const Counts& other);
};

/// Memory of one node that several ranks map: what one writes the others read after fence().
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual std::span<std::byte> bytes() = 0;
  /// Everything written before is visible to all ranks after. Collective over the communicator that made it.
  virtual void fence() = 0;
};

/// The collectives of a step. Every function is collective: all ranks call the same ones in the same order with the same
/// sizes. Buffers belong to the caller and must live until wait().
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// full[r] := local of rank r; full.size() == size() * local.size(). `local` may already lie at its place in `full`.
  virtual std::unique_ptr<Pending> all_gather_start(std::span<const std::byte> local, std::span<std::byte> full) = 0;
  /// Piece r of `send` (equal pieces) goes to rank r; `receive` holds what each rank sent here, in rank order. With a sum in
  /// rank order on the receiving side this is the reduce-scatter: MPI_SUM's order would depend on size and rank count.
  virtual std::unique_ptr<Pending> exchange_start(std::span<const std::byte> send, std::span<std::byte> receive) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;
  /// Small blocking gather for scalars and verdicts.
  virtual void gather_control(std::span<const std::byte> local, std::span<std::byte> full) = 0;

  /// The color of a rank of this communicator: the same function on all ranks.
  using ColorOf = std::function<int(int rank)>;
  /// A communicator of the ranks of the same color, in the order of this one. Collective.
  virtual std::unique_ptr<Communicator> split(const ColorOf& color_of) = 0;
  /// A communicator of the ranks of this one that run on the same node. Collective.
  virtual std::unique_ptr<Communicator> split_by_node() = 0;
  /// Zeroed memory for all ranks, which must run on one node. Error(kOutOfMemory) when there is none. Collective.
  virtual std::unique_ptr<SharedMemory> allocate_shared(std::uint64_t bytes) = 0;

  virtual const Counts& counts() const = 0;
  virtual void reset_counts() = 0;

  /// Values of all ranks, in rank order. Collective.
  template <typename T>
  std::vector<T> gather_values(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(size()));
    gather_control(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  }

  /// Root's text on every rank. Collective.
  std::string broadcast_text(const std::string& text, int root);
};

}  // namespace shardtune::comm
