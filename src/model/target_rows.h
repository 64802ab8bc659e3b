#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "shardtune/model/linear.h"

namespace shardtune::model {

/// Rows of a chunk of the loss over so many classes: its logits are 32 MB in fp32.
inline std::int64_t loss_chunk_rows(std::int64_t classes) {
  constexpr std::int64_t kElements = 8 << 20;
  return std::max<std::int64_t>(16, kElements / classes);
}

/// The positions that have a target, as the head sees them.
struct TargetRows {
  at::Tensor where, classes;  ///< [n] int64
  std::vector<std::int64_t> samples;
  std::vector<std::int32_t> document_positions;

  TargetRows(std::span<const std::int32_t> targets, const StepContext& context) {
    const auto count = std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; });
    where = at::empty({count}, at::kLong);
    classes = at::empty({count}, at::kLong);
    std::int64_t n = 0;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] < 0) continue;
      where.mutable_data_ptr<std::int64_t>()[n] = static_cast<std::int64_t>(i);
      classes.mutable_data_ptr<std::int64_t>()[n++] = targets[i];
      samples.push_back(context.samples[i]);
      document_positions.push_back(context.document_positions[i]);
    }
  }

  /// The context of these positions alone; its spans point into this object.
  StepContext seen_from(const StepContext& context) const {
    StepContext out = context;
    out.samples = samples;
    out.document_positions = document_positions;
    return out;
  }
};

}  // namespace shardtune::model
