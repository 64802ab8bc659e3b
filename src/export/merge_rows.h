#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "merge_plan.h"
#include "shardtune/quant/records.h"

namespace shardtune::exporting {

/// Makes blocks of rows of the result. Keeps what the next block of the same tensor needs again: the factor that all rows share,
/// and the scales of a matrix that is quantised.
class MergedRows {
 public:
  MergedRows(const MergeSources& sources, const MergePlan& plan) : sources_(sources), plan_(plan) {}

  /// [count, columns] in the type of the result. Error(kBadModel) for what is not finite, before or after.
  at::Tensor make(const RowBlock& block);

 private:
  at::Tensor base_rows(const ResultTensor& tensor, const RowBlock& block);
  at::Tensor quantised_rows(const ResultTensor& tensor, const RowBlock& block);
  void find_scales(const ResultTensor& tensor, const quant::RecordLayout& layout);
  at::Tensor change(const ResultTensor& tensor, const RowBlock& block);
  void begin(const RowBlock& block);

  const MergeSources& sources_;
  const MergePlan& plan_;
  std::size_t current_ = static_cast<std::size_t>(-1);
  at::Tensor shared_;  ///< A of a linear, B of the embedding, of all its adapters
  std::vector<float> absmax_;  ///< of the current matrix
  float offset_ = 0;
};

/// Bytes that a rank needs at most for the tensors of the plan.
std::uint64_t working_bytes(const MergeSources& sources, const MergePlan& plan);

}  // namespace shardtune::exporting
