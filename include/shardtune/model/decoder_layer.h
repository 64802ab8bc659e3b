#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shardtune/core/ops.h"
#include "shardtune/model/config.h"
#include "shardtune/model/linear.h"

namespace shardtune::model {

/// What a layer keeps from forward for backward of n tokens. Norms and silu(gate) * up are computed again: they cost little.
struct SliceSaved {
  at::Tensor q, k, v;  ///< [n, heads, E], rotated
  ops::AttentionSaved attention;
  at::Tensor attended;  ///< [n, H * E]
  at::Tensor middle;  ///< [n, D] after the attention residual
  at::Tensor gate, up;  ///< [n, F]; undefined: computed again in backward
};

/// A layer works on one slice of a micro-batch after the other: whole segments, as many as StepContext::ffn_chunk_tokens
/// holds but at least one. So its work space does not grow with the batch.
struct LayerSaved {
  at::Tensor input;  ///< [N, D]
  std::vector<SliceSaved> slices;  ///< empty: computed again in backward, slice by slice
};

/// What a layer keeps of the sequences that are being continued.
struct LayerCache {
  std::vector<at::Tensor> keys, values;  ///< of each sequence [tokens it may have, K, E]; keys are rotated
};

class FeedForward;

/// One Llama decoder layer with a backward written out by hand: what is kept, recomputed and freed is decided here and not
/// by a recorded graph. Letters: N tokens, D width, F feed-forward width, H query heads, K key/value heads, E head width.
class DecoderLayer {
 public:
  /// Enters the layer's parameters into `unit`.
  DecoderLayer(const ModelConfig& config, std::int64_t index, UnitSpec& unit, const LinearGroupFactory& factory,
               const TrainedModules& trained);
  ~DecoderLayer();
  DecoderLayer(DecoderLayer&&) noexcept;

  /// x [N, D] -> [N, D]. Fills the slices of `saved` when given; its input is the caller's to keep.
  at::Tensor forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, LayerSaved* saved) const;
  /// Forward of new tokens x [N, D] of the cache's sequences: context.segments are those of each, after the `lengths` tokens that
  /// are there already. Enters their keys and values. Evaluation: no dropout.
  at::Tensor extend(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, LayerCache& cache,
                    std::span<const std::int64_t> lengths) const;
  /// Gradient of the output [N, D], which it may overwrite -> gradient of saved.input. Consumes `saved`, computes again what it
  /// lacks; adds weight gradients to unit.gradients.
  at::Tensor backward(at::Tensor gradient, LayerSaved saved, UnitTensors& unit, const StepContext& context) const;

 private:
  /// Queries, keys and values [N, heads, E] of x, rotated.
  struct Projected {
    at::Tensor q, k, v;
  };
  Projected project(const at::Tensor& x, const UnitTensors& unit, const StepContext& context) const;
  /// x plus attention; fills the attention half of `saved` when given.
  at::Tensor attend(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, SliceSaved* saved) const;
  at::Tensor forward_slice(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                           SliceSaved* saved) const;
  at::Tensor backward_slice(const at::Tensor& gradient, const at::Tensor& x, SliceSaved saved, UnitTensors& unit,
                            const StepContext& context) const;

  ModelConfig config_;
  std::size_t norm_ = 0;
  std::unique_ptr<LinearGroup> qkv_, output_;
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace shardtune::model
