#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "shardtune/fsdp/schedule.h"
#include "shardtune/model/llama.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

/// Bytes of the keys and values that all layers keep of a token.
std::int64_t cache_bytes_of_token(const model::ModelConfig& config, at::ScalarType type);

/// Sequences that are being continued, with the keys and values of every layer.
class Sequences {
 public:
  /// `capacities`: tokens that each may have.
  Sequences(const model::ModelConfig& config, std::span<const std::int64_t> capacities, at::ScalarType type,
            at::Device device = at::kCPU);

  std::size_t size() const { return lengths_.size(); }
  /// Lets sequence `i` go; those behind move up.
  void erase(std::size_t i);
  /// As if every sequence had all tokens but its last one. On shapes alone there is nothing else to know of them.
  void fill();

 private:
  friend class Decoder;
  std::vector<model::LayerCache> layers_;
  std::vector<std::int64_t> lengths_;  ///< tokens that are there
};

/// Forward passes of new tokens through the sharded model: the walk over units that StepEngine takes in evaluation, over
/// sequences that are kept. FULL_SHARD and HYBRID_SHARD gather every unit in every pass; SHARD_GRAD_OP keeps what has a buffer of
/// its own until finish(). Collective; a rank without sequences takes part with empty ones.
class Decoder {
 public:
  explicit Decoder(Run& run);

  /// Makes the rotary table once for positions below `positions`.
  void prepare(std::int64_t positions);
  /// `tokens[i]` are new in sequence i, at least one -> logits [sequences, V] in fp32 after the last one of each; undefined
  /// without sequences. Collective.
  at::Tensor extend(Sequences& sequences, std::span<const std::vector<std::int32_t>> tokens);
  /// Lets go of what was kept between passes. Collective.
  void finish();

 private:
  struct Walk;
  void forward_unit(std::size_t unit, Walk& walk);
  /// The embedding's part that a piece of the table gives.
  void embed_from(std::size_t stage, Walk& walk) const;
  void embed_in_pieces(Walk& walk);
  /// Of the last token of each sequence, [sequences, V].
  at::Tensor logits_of(const Walk& walk);

  Run& run_;
  at::Device device_;
  fsdp::Schedule schedule_;
  model::RotaryTable rotary_;
};

}  // namespace shardtune::train
