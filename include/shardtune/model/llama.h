#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/model/decoder_layer.h"

namespace shardtune::model {

/// cos and sin of every position, grown when a longer row comes.
class RotaryTable {
 public:
  RotaryTable(const ModelConfig& config, const at::TensorOptions& options);
  /// Fills context.cosine and context.sine [N, E/2] for positions [N].
  void lookup(std::span<const std::int32_t> positions, StepContext& context);

 private:
  std::vector<float> inverse_frequencies_;
  at::TensorOptions options_;
  at::Tensor cosine_, sine_;  ///< [positions, E/2]
};

/// A Llama decoder as a list of units: 0 the embedding, 1..L the layers, L + 1 final norm + head. Holds no weights: they come
/// with each call as the gathered unit. Tied embeddings: the head's slot is borrowed from the embedding unit.
class LlamaModel {
 public:
  /// `factory` makes the linears of the layers; `train_base` makes everything else trainable (full fine-tuning).
  LlamaModel(const ModelConfig& config, const LinearGroupFactory& factory, bool train_base);

  const ModelConfig& config() const { return config_; }
  const std::vector<UnitSpec>& units() const { return units_; }
  std::size_t layers() const { return layers_.size(); }
  std::size_t head_unit() const { return layers_.size() + 1; }
  const DecoderLayer& layer(std::size_t i) const { return layers_[i]; }
  /// Slot of the table in the embedding unit; of the final norm and of the head's weight in the head unit.
  static constexpr std::size_t kEmbeddingSlot = 0, kNormSlot = 0, kHeadSlot = 1;

  /// ids [N] -> [N, D] in `type`.
  at::Tensor embed(const at::Tensor& ids, const UnitTensors& embedding, at::ScalarType type) const;

  struct LossResult {
    double loss_sum = 0;  ///< sum of the token losses, fp64
    at::Tensor gradient;  ///< [N, D] gradient of scale * loss_sum; undefined when not wanted
  };
  /// Final norm, head and cross-entropy on the positions that have a target, in chunks: N x V logits never exist, ignored
  /// positions cost nothing. Adds weight gradients.
  LossResult loss(const at::Tensor& x, std::span<const std::int32_t> targets, UnitTensors& head,
                  const StepContext& context, double scale, bool want_gradient) const;

  /// Logits [N, V] in fp32, for tests and exports of small inputs. Evaluation: no dropout.
  at::Tensor logits(const at::Tensor& x, const UnitTensors& head) const;

 private:
  ModelConfig config_;
  std::vector<UnitSpec> units_;
  std::vector<DecoderLayer> layers_;
  std::unique_ptr<LinearGroup> head_;
};

}  // namespace shardtune::model
