#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/data/rows.h"

namespace shardtune::data {

/// Rows of one micro-batch laid end to end, without padding: N tokens in all. Padding is never computed on; rows only
/// meet in the token-wise layers, attention works per segment.
struct MicroBatch {
  std::vector<std::int32_t> ids;  ///< [N]
  std::vector<std::int32_t> targets;  ///< [N] label of the next token of the same segment, kIgnoredLabel where none
  std::vector<std::int32_t> positions;  ///< [N] position ids: restart at 0 in each segment
  std::vector<std::int32_t> segments;  ///< tokens of each attention segment, sum N
  std::vector<std::int64_t> samples;  ///< [N] global sample of each token (dropout key)
  std::vector<std::int32_t> document_positions;  ///< [N] position in the document (dropout key)
  std::vector<std::int64_t> rows;  ///< indices of the rows, for traces
  std::int64_t target_count = 0;

  bool empty() const { return ids.empty(); }
};

MicroBatch collate(const std::vector<Row>& rows, const std::vector<std::int64_t>& which);

/// Where a run stands in its data: all that a checkpoint stores of it.
struct LoaderPosition {
  std::int64_t epoch = 0;  ///< from 0
  std::int64_t step_in_epoch = 0;  ///< optimizer steps already taken in the epoch
};

/// Deals rows to ranks. Rows of an epoch (shuffled by seed and epoch, or in data order) are cut into micro-batches of
/// `micro_batch_rows`; step s takes the next `ranks * accumulation` micro-batches and micro-batch j of a step goes to rank
/// j % ranks in slot j / ranks. So the same global batch has the same micro-batches for any number of ranks. The last step
/// of an epoch may be short: some ranks then get empty micro-batches. Every row is dealt exactly once per epoch.
class Loader {
 public:
  Loader(std::int64_t row_count, std::int64_t micro_batch_rows, std::int64_t ranks, std::int64_t accumulation,
         bool shuffle, std::uint64_t seed);

  std::int64_t steps_per_epoch() const;
  /// Slots that hold at least one row on some rank in this step: 1..accumulation. The same on all ranks.
  std::int64_t slots(std::int64_t step_in_epoch) const;
  /// Row indices for one rank and slot; empty when there are none left.
  std::vector<std::int64_t> rows(std::int64_t epoch, std::int64_t step_in_epoch, std::int64_t slot,
                                 std::int64_t rank) const;

  /// The order of an epoch: a permutation of 0..row_count-1.
  std::vector<std::int64_t> order(std::int64_t epoch) const;

 private:
  std::int64_t row_count_, micro_batch_rows_, ranks_, accumulation_;
  bool shuffle_;
  std::uint64_t seed_;
  mutable std::int64_t cached_epoch_ = -1;
  mutable std::vector<std::int64_t> cached_order_;
};

}  // namespace shardtune::data
