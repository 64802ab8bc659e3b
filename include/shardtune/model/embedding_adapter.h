#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shardtune/model/config.h"
#include "shardtune/model/parameters.h"

namespace shardtune::model {

/// What an adapter makes of the rows of the embedding's table. Letters: N tokens, D width.
class EmbeddingAdapter {
 public:
  virtual ~EmbeddingAdapter() = default;
  /// Changes x [N, D], the table's rows of ids [N] (int64, on the host). `saved`, when given, gets what backward needs: the
  /// unit's weights are not gathered then.
  virtual void apply(at::Tensor& x, const at::Tensor& ids, const UnitTensors& unit,
                     std::vector<at::Tensor>* saved) const = 0;
  /// Adds to unit.gradients for `gradient` [N, D] of x, and changes `gradient` into that of the table's rows.
  virtual void backward(at::Tensor& gradient, const at::Tensor& ids, std::span<const at::Tensor> saved,
                        UnitTensors& unit) const = 0;
};

/// Enters the adapter's parameters into the embedding unit; may return null.
using EmbeddingAdapterFactory =
    std::function<std::unique_ptr<EmbeddingAdapter>(UnitSpec& unit, const ModelConfig& config)>;

}  // namespace shardtune::model
