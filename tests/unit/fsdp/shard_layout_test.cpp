// The arithmetic of shards: every element on exactly one rank, granules whole, shards equal.
#include <gtest/gtest.h>

#include "shardtune/fsdp/shard_layout.h"

namespace shardtune::fsdp {
namespace {

TEST(ShardLayout, EveryElementOnceAndGranulesWhole) {
  const std::vector<std::int64_t> sizes = {7, 0, 300, 256, 1, 1025};
  for (const std::int64_t granule : {1, 64, 256})
    for (std::int64_t ranks = 1; ranks <= 9; ++ranks) {
      const ShardLayout layout(sizes, granule, ranks);
      EXPECT_EQ(layout.shard_elements() % granule, 0);
      EXPECT_EQ(layout.full_elements(), layout.shard_elements() * ranks);
      std::vector<std::vector<int>> owners(sizes.size());
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        EXPECT_EQ(layout.offset(t) % granule, 0);
        owners[t].assign(static_cast<std::size_t>(sizes[t]), 0);
      }
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        for (const TensorRange& range : layout.ranges(rank)) {
          EXPECT_EQ(rank * layout.shard_elements() + range.flat_begin, layout.offset(range.tensor) + range.begin);
          EXPECT_LE(range.flat_begin + range.end - range.begin, layout.shard_elements());
          EXPECT_EQ((rank * layout.shard_elements() + range.flat_begin) % (range.begin == 0 ? granule : 1), 0);
          EXPECT_EQ(range.begin % granule, 0) << "a granule is cut";
          for (std::int64_t i = range.begin; i < range.end; ++i) ++owners[range.tensor][static_cast<std::size_t>(i)];
        }
      for (const auto& tensor : owners)
        for (const int count : tensor) EXPECT_EQ(count, 1);
    }
}

TEST(ShardLayout, PaddingIsLessThanAGranulePerTensorAndRank) {
  const ShardLayout layout({1000, 1000}, 256, 3);
  EXPECT_EQ(layout.offset(1), 1024);
  EXPECT_EQ(layout.shard_elements(), 768);  // 2024 -> 2048 rounded per tensor, / 3 -> 683 -> 768
}

TEST(ShardLayout, EmptyUnit) {
  const ShardLayout layout({}, 256, 4);
  EXPECT_EQ(layout.shard_elements(), 0);
  EXPECT_TRUE(layout.ranges(0).empty());
}

}  // namespace
}  // namespace shardtune::fsdp
