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
  at::Tensor gate, up;  ///< [N, F]
};

/// One Llama decoder layer with a backward written out by hand: what is kept, recomputed and freed is decided here and not
/// by a recorded graph. Letters: N tokens, D width, F feed-forward width, H query heads, K key/value heads, E head width.
class DecoderLayer {
 public:
  /// Enters the layer's parameters into `unit`.
  DecoderLayer(const ModelConfig& config, std::int64_t index, UnitSpec& unit, const LinearGroupFactory& factory,
               bool train_norms);

  /// x [N, D] -> [N, D]. Fills `saved` when given.
  at::Tensor forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, LayerSaved* saved) const;
  /// Gradient of the output -> gradient of x. Consumes `saved`; adds weight gradients to unit.gradients.
  at::Tensor backward(const at::Tensor& gradient, LayerSaved saved, UnitTensors& unit,
                      const StepContext& context) const;

 private:
  const ModelConfig config_;
  std::size_t attention_norm_ = 0, feed_forward_norm_ = 0;
  std::unique_ptr<LinearGroup> qkv_, output_, gate_up_, down_;
};

}  // namespace shardtune::model
