#pragma once
#include "shardtune/train/run.h"

namespace shardtune::train {

/// The rows of one micro-batch, all alike: as long as --max_length allows when packed, and filled with documents of equal
/// length (the last one may be shorter); unpacked, one document each. Of every document the last tokens are trained on.
std::vector<data::Row> synthetic_rows(const options::RunOptions& options);

}  // namespace shardtune::train
