#include "shardtune/fsdp/shard_layout.h"

#include <algorithm>

#include "shardtune/core/error.h"

namespace shardtune::fsdp {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ShardLayout::ShardLayout(const std::vector<std::int64_t>& sizes, std::int64_t granule, std::int64_t ranks)
    : sizes_(sizes), ranks_(ranks) {
  SHARDTUNE_CHECK(granule > 0 && ranks > 0, "granule {}, ranks {}", granule, ranks);
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) {
    SHARDTUNE_CHECK(size >= 0, "tensor of {} elements", size);
    offsets_.push_back(end);
    end = round_up(end + size, granule);
  }
  shard_ = round_up((end + ranks - 1) / ranks, granule);
}

std::vector<TensorRange> ShardLayout::ranges(std::int64_t rank) const {
  const std::int64_t first = rank * shard_, last = first + shard_;
  std::vector<TensorRange> out;
  for (std::size_t t = 0; t < sizes_.size(); ++t) {
    const std::int64_t begin = std::max(first, offsets_[t]), end = std::min(last, offsets_[t] + sizes_[t]);
    if (begin < end) out.push_back({t, begin - offsets_[t], end - offsets_[t], begin - first});
  }
  return out;
}

}  // namespace shardtune::fsdp
