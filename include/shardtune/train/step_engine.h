#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "shardtune/data/loader.h"
#include "shardtune/fsdp/schedule.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/model/llama.h"

namespace shardtune::train {

struct StepSettings {
  at::ScalarType compute_type{};  ///< of activations
  /// By layer: true keeps what backward needs, false keeps only the layer's input and computes it again. Empty: none is kept.
  std::vector<bool> keep_layers{};
  std::int64_t input_block = 1;  ///< layers that keep one input together, see fsdp::Policy
  std::int64_t ffn_chunk_tokens = 0;  ///< see model::StepContext
  std::int64_t loss_groups = 1;  ///< of the rows of a micro-batch at a head in pieces, see model::loss_groups
  std::uint64_t seed = 42;  ///< keys dropout
  at::Device device = at::kCPU;
};

/// Runs micro-batches through the sharded model: a plain loop over units in which every collective can be read in order, with
/// fsdp::Schedule. All functions are collective; a rank without rows passes empty micro-batches and takes part in the
/// collectives.
class StepEngine {
 public:
  StepEngine(const model::LlamaModel& model, fsdp::ShardedModel& shards, const fsdp::Policy& policy,
             const StepSettings& settings);

  /// Forward and backward; gradients of `scale` * loss sum are added to the shards' sums. All `batches` pass through a unit
  /// before the next one is gathered; their inputs of each layer are kept meanwhile. Returns the loss sums (fp64). Calls
  /// with one batch each and one call with all of them give the same bits.
  std::vector<double> forward_backward(std::span<const data::MicroBatch> batches, std::int64_t step, double scale);
  /// Loss sum without dropout and gradients.
  double evaluate(const data::MicroBatch& batch) { return evaluate_tokens(batch).loss_sum; }
  /// The same with the number of tokens that have the largest logit.
  model::LlamaModel::LossResult evaluate_tokens(const data::MicroBatch& batch);
  /// Logits [N, V] fp32 without dropout.
  at::Tensor logits(const data::MicroBatch& batch);

 private:
  /// One micro-batch on its way.
  struct Walk {
    const data::MicroBatch* batch = nullptr;
    model::StepContext context;
    at::Tensor ids;
    at::Tensor x;  ///< input of the next stage
    at::Tensor gradient;  ///< of the stage before, in backward
    std::vector<model::LayerSaved> saved;  ///< by layer
    std::vector<at::Tensor> embedding_saved;
    double loss = 0;
    std::int64_t correct = 0;  ///< tokens with the largest logit, in evaluation
  };

  Walk make_walk(const data::MicroBatch& batch, std::int64_t step, bool training);
  /// Names what comes for the ledger and the work listener.
  void announce(const char* verb, std::size_t stage) const;
  /// The head, or a piece of a table behind it.
  bool is_head(std::size_t stage) const { return stage >= model_.head_unit(); }
  bool keeps(std::size_t layer) const { return layer < settings_.keep_layers.size() && settings_.keep_layers[layer]; }

  /// All walks through a unit before the head's, with its gather.
  void pass_forward(std::size_t unit, std::span<Walk> walks, bool training);
  /// Pieces of rows (table_pieces.cpp): the embedding's part of x that the piece in a gathered stage gives; the same for all walks
  /// and pieces with their gathers.
  void embed_from(std::size_t stage, Walk& walk) const;
  void embed_in_pieces(std::span<Walk> walks, bool training);
  /// use(stage of the piece) for each of the head's pieces while it is gathered.
  template <typename F>
  void for_each_head_piece(F use);
  /// Loss and, when wanted, gradient of walks at the head, which comes in pieces.
  void lose_in_pieces(std::span<Walk> walks, double scale, bool want_gradient);
  /// The same for one walk, whichever way the head comes.
  void lose(Walk& walk, double scale, bool want_gradient);
  at::Tensor logits_of(const Walk& walk);
  bool head_in_pieces() const { return !model_.head_stages().empty(); }
  /// Every stage of the unit but the head.
  void forward_unit(std::size_t unit, Walk& walk, bool training);
  bool keeps_input(std::size_t layer) const { return layer % static_cast<std::size_t>(settings_.input_block) == 0; }
  /// Makes the inputs again that backward of the unit needs and that were not kept.
  void make_inputs_again(std::size_t unit, std::span<Walk> walks);
  /// The inputs of layers up to `last_layer` that the unit's layers give.
  void forward_again(std::size_t unit, std::size_t last_layer, Walk& walk);
  void backward_stage(std::size_t stage, Walk& walk);
  void backward_unit(std::size_t unit, Walk& walk);
  /// The last unit: its forward, the loss, its backward.
  void turn(Walk& walk, double scale);
  /// All units in evaluation; `at_head` runs while the head is gathered, on all ranks.
  template <typename F>
  void walk_forward(Walk& walk, F at_head);

  const model::LlamaModel& model_;
  fsdp::ShardedModel& shards_;
  fsdp::Schedule schedule_;
  StepSettings settings_;
  model::RotaryTable rotary_;
};

}  // namespace shardtune::train
