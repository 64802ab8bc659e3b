#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/model/decoder_layer.h"
#include "shardtune/model/embedding_adapter.h"

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
/// with each call as the gathered unit. Tied embeddings: the head's slot is borrowed from the embedding unit, unless one of the
/// two is trained as a copy of its own beside a frozen base: then both exist.
class LlamaModel {
 public:
  /// `factory` makes the linears of the layers and the head; `trained` says which of the other modules are trained themselves.
  /// `untie`: the head of a tied model gets a weight of its own, which starts as the table.
  LlamaModel(const ModelConfig& config, const LinearGroupFactory& factory, const TrainedModules& trained,
             bool untie = false, const EmbeddingAdapterFactory& embedding_adapter = {});

  const ModelConfig& config() const { return config_; }
  const std::vector<UnitSpec>& units() const { return units_; }
  /// For adapters, which enter their parameters behind the others.
  std::vector<UnitSpec>& units_for_adapters() { return units_; }
  std::size_t layers() const { return layers_.size(); }
  std::size_t head_unit() const { return layers_.size() + 1; }
  const DecoderLayer& layer(std::size_t i) const { return layers_[i]; }
  /// The head uses the embedding's table.
  bool head_borrows() const { return units_.back().parameters[kHeadSlot].borrowed; }
  /// Slot of the table in the embedding unit; of the final norm and of the head's weight in the head unit.
  static constexpr std::size_t kEmbeddingSlot = 0, kNormSlot = 0, kHeadSlot = 1;

  /// ids [N] -> [N, D] in `type`. `saved`, when given, gets what embed_backward() needs.
  at::Tensor embed(const at::Tensor& ids, const UnitTensors& embedding, at::ScalarType type,
                   std::vector<at::Tensor>* saved = nullptr) const;
  /// Adds the gradients of the table and of its adapter for `gradient` [N, D], where they are trained. Needs no weights.
  void embed_backward(const at::Tensor& gradient, const at::Tensor& ids, std::span<const at::Tensor> saved,
                      UnitTensors& embedding) const;

  struct LossResult {
    double loss_sum = 0;  ///< sum of the token losses, fp64
    std::int64_t correct = 0;  ///< tokens whose target has the largest logit; counted without gradients only
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
  std::unique_ptr<EmbeddingAdapter> embedding_adapter_;  ///< null: none
};

}  // namespace shardtune::model
