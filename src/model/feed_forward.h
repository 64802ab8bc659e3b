#pragma once
#include <memory>

#include "shardtune/model/config.h"
#include "shardtune/model/linear.h"

namespace shardtune::model {

/// The second half of a decoder layer: x + down(silu(gate(norm x)) * up(norm x)), and its backward. Works on chunks of tokens
/// (StepContext::ffn_chunk_tokens), so that only a chunk's [tokens, F] tensors exist unless they are kept.
class FeedForward {
 public:
  /// Enters the parameters into `unit`.
  FeedForward(const ModelConfig& config, std::int64_t layer, UnitSpec& unit, const LinearGroupFactory& factory,
              const TrainedModules& trained);

  /// [N, D] -> [N, D]; `gate` and `up` [N, F] are filled when given.
  at::Tensor forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context, at::Tensor* gate,
                     at::Tensor* up) const;
  /// Gradient of the output -> gradient of x. `gate` and `up` are used up; undefined: computed again, chunk by chunk.
  at::Tensor backward(const at::Tensor& gradient, const at::Tensor& x, at::Tensor gate, at::Tensor up,
                      UnitTensors& unit, const StepContext& context) const;

 private:
  double epsilon_;
  std::size_t norm_ = 0;
  std::unique_ptr<LinearGroup> gate_up_, down_;
};

}  // namespace shardtune::model
