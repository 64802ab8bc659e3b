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

/// Pieces of rows in which a frozen embedding table and head are gathered, from the model's shape alone, so that no number
/// depends on ranks or storage: a piece is no larger than a quarter of a layer's weights (a layer's bytes in 4 bits beside 16-bit
/// rows), or than 32 Mi weights, below which nothing is gained.
std::int64_t table_pieces_of(const ModelConfig& config);

/// A Llama decoder as a list of units: 0 the embedding, 1..L the layers, L + 1 final norm + head. Holds no weights: they come
/// with each call as the gathered unit. Tied embeddings: the head's slot is borrowed from the embedding unit, unless one of the
/// two is trained as a copy of its own beside a frozen base: then both exist. Pieces of a table but the embedding's first are units
/// behind the head.
class LlamaModel {
 public:
  /// `factory` makes the linears of the layers and the head; `trained` says which of the other modules are trained themselves.
  /// `untie`: the head of a tied model gets a weight of its own, which starts as the table. `table_pieces`: of a
  /// frozen embedding table and of a frozen head, both without adapter; 0: table_pieces_of(config).
  LlamaModel(const ModelConfig& config, const LinearGroupFactory& factory, const TrainedModules& trained,
             bool untie = false, const EmbeddingAdapterFactory& embedding_adapter = {}, std::int64_t table_pieces = 0);

  const ModelConfig& config() const { return config_; }
  const std::vector<UnitSpec>& units() const { return units_; }
  /// For adapters, which enter their parameters behind the others.
  std::vector<UnitSpec>& units_for_adapters() { return units_; }
  std::size_t layers() const { return layers_.size(); }
  std::size_t head_unit() const { return layers_.size() + 1; }
  const DecoderLayer& layer(std::size_t i) const { return layers_[i]; }
  /// The head uses the embedding's table as a whole.
  bool head_borrows() const {
    const std::vector<Parameter>& head = units_[head_unit()].parameters;
    return head.size() > kHeadSlot && head[kHeadSlot].borrowed;
  }
  /// Slot of the table in the embedding unit; of the final norm and of the head's weight in the head unit.
  static constexpr std::size_t kEmbeddingSlot = 0, kNormSlot = 0, kHeadSlot = 1;

  /// The units that hold the table's pieces of rows, in order: the embedding alone unless it is cut.
  const std::vector<std::size_t>& table_stages() const { return table_stages_; }
  /// Those of the head's pieces (kPieceSlot; of a tied model the table's), in order. Empty: the head's unit holds its weight
  /// whole. Else it holds the norm alone, and loss() and logits() are not for it but PiecewiseLoss and logits_of_piece().
  const std::vector<std::size_t>& head_stages() const { return head_stages_; }
  static constexpr std::size_t kPieceSlot = 0;
  /// First row of the piece in this unit.
  std::int64_t first_row(std::size_t unit) const { return units_[unit].parameters[kPieceSlot].first_row; }

  /// ids [N] -> [N, D] in `type`; the table must be in one piece. `saved`, when given, gets what embed_backward() needs.
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
  void cut_tables(std::int64_t pieces);

  ModelConfig config_;
  std::vector<UnitSpec> units_;
  std::vector<DecoderLayer> layers_;
  std::unique_ptr<LinearGroup> head_;
  std::unique_ptr<EmbeddingAdapter> embedding_adapter_;  ///< null: none
  std::vector<std::size_t> table_stages_ = {0}, head_stages_;
};

}  // namespace shardtune::model
