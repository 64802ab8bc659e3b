#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/data/loader.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/model/llama.h"

namespace shardtune::train {

struct StepSettings {
  at::ScalarType compute_type{};  ///< of activations
  bool recompute = true;  ///< keep only the layers' inputs; false keeps what backward needs
  std::uint64_t seed = 42;  ///< keys dropout
};

/// Runs one micro-batch through the sharded model: a plain loop over units in which every collective can be read in order. All
/// functions are collective; a rank without rows passes an empty micro-batch and takes part in the collectives.
class StepEngine {
 public:
  StepEngine(const model::LlamaModel& model, fsdp::ShardedModel& shards, const StepSettings& settings);

  /// Forward and backward; gradients of `scale` * loss sum are added to the shards' sums. Returns the loss sum (fp64).
  double forward_backward(const data::MicroBatch& batch, std::int64_t step, double scale);
  /// Loss sum without dropout and gradients.
  double evaluate(const data::MicroBatch& batch);
  /// Logits [N, V] fp32 without dropout.
  at::Tensor logits(const data::MicroBatch& batch);

 private:
  model::StepContext make_context(const data::MicroBatch& batch, std::int64_t step, bool training);
  /// Embedding and layers. `inputs`/`saved` are filled as the settings say when given; the last layer stays gathered then.
  at::Tensor run_layers(const data::MicroBatch& batch, const model::StepContext& context,
                        std::vector<model::LayerSaved>* saved);
  model::UnitTensors& unshard_head();
  void reshard_head();
  void prefetch_head();
  at::Tensor layer_backward(std::size_t unit, const at::Tensor& gradient, model::LayerSaved saved,
                            const model::StepContext& context);
  void embedding_backward(const data::MicroBatch& batch, const at::Tensor& gradient);

  const model::LlamaModel& model_;
  fsdp::ShardedModel& shards_;
  StepSettings settings_;
  model::RotaryTable rotary_;
};

}  // namespace shardtune::train
