#include "shardtune/checkpoint/base_fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>

#include "shardtune/comm/agree.h"
#include "shardtune/core/dtype.h"

namespace shardtune::checkpoint {
namespace {

constexpr std::uint64_t kBlockElements = 16384;
constexpr std::uint64_t kBlocksAtOnce = 64;  ///< that are read together: 4 MiB of fp32
constexpr std::uint64_t kBlocksOfRound = 4096;  ///< of a rank, between two gathers of hashes

using Hash = std::array<unsigned char, sizeof(XXH128_canonical_t)>;

Hash canonical(XXH128_hash_t hash) {
  XXH128_canonical_t text;
  XXH128_canonicalFromHash(&text, hash);
  Hash out;
  std::ranges::copy(text.digest, out.begin());
  return out;
}

std::uint64_t blocks_of(const io::TensorInfo& tensor) {
  return (static_cast<std::uint64_t>(tensor.elements()) + kBlockElements - 1) / kBlockElements;
}

/// All blocks of all tensors, in one row.
class Blocks {
 public:
  explicit Blocks(const io::SafetensorsFolder& base) : base_(base), names_(base.names()) {
    std::ranges::sort(names_);
    for (const std::string& name : names_) {
      begins_.push_back(total_);
      total_ += blocks_of(base.tensor(name));
    }
  }

  std::uint64_t total() const { return total_; }
  const std::vector<std::string>& names() const { return names_; }
  std::uint64_t begin_of(std::size_t tensor) const { return begins_[tensor]; }

  /// Hashes of blocks [first, first + out.size()).
  void hash(std::uint64_t first, std::span<Hash> out) const {
    std::vector<std::byte> bytes;
    for (std::uint64_t done = 0; done < out.size();) {
      const std::uint64_t block = first + done;
      // Tensors without elements have no block and begin where the next one does.
      const auto tensor = static_cast<std::size_t>(std::ranges::upper_bound(begins_, block) - begins_.begin() - 1);
      const io::TensorInfo& info = base_.tensor(names_[tensor]);
      const std::uint64_t number = block - begins_[tensor], width = kBlockElements * dtype_bytes(info.dtype);
      const std::uint64_t count = std::min({blocks_of(info) - number, out.size() - done, kBlocksAtOnce});
      bytes.resize(std::min(info.bytes - number * width, count * width));
      base_.read(names_[tensor], number * width, bytes);
      for (std::uint64_t i = 0; i < count; ++i)
        out[done + i] =
            canonical(XXH3_128bits(bytes.data() + i * width, std::min<std::uint64_t>(width, bytes.size() - i * width)));
      done += count;
    }
  }

 private:
  const io::SafetensorsFolder& base_;
  std::vector<std::string> names_;
  std::vector<std::uint64_t> begins_;
  std::uint64_t total_ = 0;
};

/// The hash over everything, fed in order.
class Root {
 public:
  Root(const io::SafetensorsFolder& base, const Blocks& blocks)
      : base_(base), blocks_(blocks), state_(XXH3_createState()) {
    XXH3_128bits_reset(state_.get());
  }

  void add(const Hash& hash) {
    while (tensor_ < blocks_.names().size() && blocks_.begin_of(tensor_) == next_) add_name();
    XXH3_128bits_update(state_.get(), hash.data(), hash.size());
    ++next_;
  }

  std::string finish() {
    while (tensor_ < blocks_.names().size()) add_name();
    const Hash hash = canonical(XXH3_128bits_digest(state_.get()));
    return fmt::format("{:02x}", fmt::join(hash, ""));
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };

  /// The length first, so that neighbours cannot trade characters.
  void add_name() {
    const std::string& name = blocks_.names()[tensor_++];
    const io::TensorInfo& info = base_.tensor(name);
    const std::string text = fmt::format("{} {} [{}]", name, dtype_name(info.dtype), fmt::join(info.shape, ","));
    const std::string length = fmt::format("{:08}", text.size());
    XXH3_128bits_update(state_.get(), length.data(), length.size());
    XXH3_128bits_update(state_.get(), text.data(), text.size());
  }

  const io::SafetensorsFolder& base_;
  const Blocks& blocks_;
  std::unique_ptr<XXH3_state_t, Free> state_;
  std::size_t tensor_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace

std::string base_fingerprint(const io::SafetensorsFolder& base, comm::Communicator& communicator) {
  const Blocks blocks(base);
  Root root(base, blocks);
  const auto rank = static_cast<std::uint64_t>(communicator.rank()),
             ranks = static_cast<std::uint64_t>(communicator.size());
  const std::uint64_t each = std::min(kBlocksOfRound, (blocks.total() + ranks - 1) / ranks);
  std::vector<Hash> mine(each), all(each * ranks);
  for (std::uint64_t done = 0; done < blocks.total(); done += each * ranks) {
    const std::uint64_t first = std::min(blocks.total(), done + rank * each);
    const std::uint64_t count = std::min(each, blocks.total() - first);
    comm::agree(communicator, [&] { blocks.hash(first, std::span(mine).first(count)); });
    communicator.all_gather_start(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)))->wait();
    const std::uint64_t end = std::min(each * ranks, blocks.total() - done);
    for (std::uint64_t i = 0; i < end; ++i) root.add(all[i]);
  }
  return root.finish();
}

}  // namespace shardtune::checkpoint
