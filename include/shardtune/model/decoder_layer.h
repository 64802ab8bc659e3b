#pragma once
#include <memory>

#include "shardtune/core/ops.h"
#include "shardtune/model/config.h"
#include "shardtune/model/linear.h"

namespace shardtune::model {

/// What a layer keeps from forward for backward. Norms and silu(gate) * up are computed again: they cost little.
struct LayerSaved {
  at::Tensor input;  ///< [N, D]
  at::Tensor q, k, v;  ///< [N, heads, E], rotated
  ops::AttentionSaved attention;
  at::Tensor attended;  ///< [N, H * E]
  at::Tensor middle;  ///< [N, D] after the attention residual
  at::Tensor gate, up;  ///< [N, F]; undefined: computed again in backward
};

class FeedForward;

/// One Llama decoder layer with a backward written out by hand: what is kept, recomputed and freed is decided here and not
/// by a recorded graph. Letters: N tokens, D width, F feed-forward width, H query heads, K key/value heads, E head width.
class DecoderLayer {
 public:
  /// Enters the layer's parameters into `unit`.
  DecoderLayer(const ModelConfig& config, std::int64_t index, UnitSpec& unit, const LinearGroupFactory& factory,
               bool train_norms);
  ~DecoderLayer();
  DecoderLayer(DecoderLayer&&) noexcept;

  /// x [N, D] -> [N, D]. Fills `saved` when given.
  at::Tensor forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, LayerSaved* saved) const;
  /// What backward needs of a layer that kept only its input: the attention half. The feed-forward half is computed again
  /// inside backward, chunk by chunk.
  LayerSaved recompute(const at::Tensor& x, const UnitTensors& unit, const StepContext& context) const;
  /// Gradient of the output -> gradient of x. Consumes `saved`; adds weight gradients to unit.gradients.
  at::Tensor backward(const at::Tensor& gradient, LayerSaved saved, UnitTensors& unit,
                      const StepContext& context) const;

 private:
  /// x plus attention; fills the attention half of `saved` when given.
  at::Tensor attend(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, LayerSaved* saved) const;

  ModelConfig config_;
  std::size_t norm_ = 0;
  std::unique_ptr<LinearGroup> qkv_, output_;
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace shardtune::model
