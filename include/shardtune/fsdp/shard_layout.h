#pragma once
#include <cstdint>
#include <vector>

namespace shardtune::fsdp {

/// Elements [begin, end) of tensor `tensor` lie at [flat_begin, flat_begin + end - begin) of a flat buffer.
struct TensorRange {
  std::size_t tensor = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t flat_begin = 0;
};

/// How tensors lie in one flat buffer and how the buffer is cut over ranks: pure arithmetic. Every tensor starts at a multiple
/// of the granule and cuts fall on granules, so what belongs together (a quantisation block, an optimizer block) is never
/// split. All shards have equal size; the tail is padding, whole shards may be padding.
class ShardLayout {
 public:
  /// sizes: elements of each tensor; granule in elements.
  ShardLayout(const std::vector<std::int64_t>& sizes, std::int64_t granule, std::int64_t ranks);

  std::int64_t shard_elements() const { return shard_; }
  std::int64_t full_elements() const { return shard_ * ranks_; }
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }
  std::int64_t size(std::size_t tensor) const { return sizes_[tensor]; }
  std::size_t tensors() const { return sizes_.size(); }
  /// The tensor elements that a rank holds, in flat order; flat_begin counts from the start of the rank's shard.
  std::vector<TensorRange> ranges(std::int64_t rank) const;

 private:
  std::vector<std::int64_t> sizes_, offsets_;
  std::int64_t ranks_ = 1, shard_ = 0;
};

}  // namespace shardtune::fsdp
