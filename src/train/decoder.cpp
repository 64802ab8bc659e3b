#include "decoder.h"

#include <ATen/ATen.h>

#include "sharding_setup.h"
#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/row_pieces.h"
#include "shardtune/model/piecewise_loss.h"
#include "unit_pieces.h"

namespace shardtune::train {

std::int64_t cache_bytes_of_token(const model::ModelConfig& config, at::ScalarType type) {
  return 2 * config.layers * config.kv_heads * config.head_dim * static_cast<std::int64_t>(c10::elementSize(type));
}

Sequences::Sequences(const model::ModelConfig& config, std::span<const std::int64_t> capacities, at::ScalarType type,
                     at::Device device)
    : layers_(static_cast<std::size_t>(config.layers)), lengths_(capacities.size(), 0) {
  const LedgerScope scope(Purpose::kKeptActivations);
  const auto options = at::TensorOptions().device(device).dtype(type);
  for (model::LayerCache& layer : layers_)
    for (const std::int64_t tokens : capacities)
      for (auto* kept : {&layer.keys, &layer.values})
        kept->push_back(at::empty({tokens, config.kv_heads, config.head_dim}, options));
}

void Sequences::fill() {
  for (std::size_t i = 0; i < lengths_.size(); ++i) lengths_[i] = layers_.front().keys[i].size(0) - 1;
}

void Sequences::erase(std::size_t i) {
  const auto place = static_cast<std::ptrdiff_t>(i);
  for (model::LayerCache& layer : layers_)
    for (auto* kept : {&layer.keys, &layer.values}) kept->erase(kept->begin() + place);
  lengths_.erase(lengths_.begin() + place);
}

/// The new tokens of all sequences on their way.
struct Decoder::Walk {
  Walk(Sequences& all, std::span<const std::vector<std::int32_t>> tokens) : sequences(all) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      for (std::size_t t = 0; t < tokens[i].size(); ++t)
        positions.push_back(static_cast<std::int32_t>(all.lengths_[i] + static_cast<std::int64_t>(t)));
      flat.insert(flat.end(), tokens[i].begin(), tokens[i].end());
      segments.push_back(static_cast<std::int32_t>(tokens[i].size()));
      last.push_back(static_cast<std::int64_t>(flat.size()) - 1);
    }
    samples.resize(flat.size());
    context.segments = segments;
    context.samples = samples;
    context.document_positions = positions;
  }
  bool empty() const { return flat.empty(); }

  Sequences& sequences;
  std::vector<std::int32_t> flat, positions, segments;
  std::vector<std::int64_t> last, samples;
  model::StepContext context;
  at::Tensor x;
};

Decoder::Decoder(Run& run)
    : run_(run), device_(device_of(run)),
      schedule_(*run.shards, run.policy, run.model->head_borrows(), pieces_of(*run.model, *run.shards)),
      rotary_(run.config, at::TensorOptions().device(device_).dtype(run.precision.compute)) {}

namespace {

at::Tensor as_tensor(std::span<const std::int64_t> values) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

}  // namespace

void Decoder::prepare(std::int64_t positions) {
  const LedgerScope scope(Purpose::kTables);
  model::StepContext unused;
  const auto last = static_cast<std::int32_t>(positions - 1);
  rotary_.lookup({&last, 1}, unused);
}

void Decoder::forward_unit(std::size_t unit, Walk& walk) {
  if (walk.empty()) return;
  const LedgerScope scope(Purpose::kWorkspace);
  for (const std::size_t stage : run_.shards->stages_of(unit)) {
    if (stage >= run_.model->head_unit()) return;
    const model::UnitTensors& tensors = run_.shards->stage(stage);
    if (stage == 0 && run_.model->table_stages().size() > 1) {
      for (const std::size_t piece : run_.model->table_stages()) embed_from(piece, walk);
    } else if (stage == 0) {
      const std::vector<std::int64_t> ids(walk.flat.begin(), walk.flat.end());
      walk.x = run_.model->embed(as_tensor(ids), tensors, run_.precision.compute);
    } else {
      walk.x = run_.model->layer(stage - 1).extend(walk.x, tensors, walk.context, walk.sequences.layers_[stage - 1],
                                                   walk.sequences.lengths_);
    }
  }
}

void Decoder::embed_from(std::size_t stage, Walk& walk) const {
  if (!walk.x.defined())
    walk.x = at::empty({static_cast<std::int64_t>(walk.flat.size()), run_.config.hidden_size},
                       at::TensorOptions().device(device_).dtype(run_.precision.compute));
  const std::vector<std::int64_t> ids(walk.flat.begin(), walk.flat.end());
  ops::take_rows_of_piece(walk.x, run_.shards->stage(stage).weights[model::LlamaModel::kPieceSlot], as_tensor(ids),
                          run_.model->first_row(stage));
}

void Decoder::embed_in_pieces(Walk& walk) {
  const LedgerScope scope(Purpose::kWorkspace);
  for (std::size_t i = 0; i < run_.model->table_stages().size(); ++i) {
    schedule_.enter_table_piece(i);
    if (!walk.empty()) embed_from(run_.model->table_stages()[i], walk);
    schedule_.leave_table_piece(i);
  }
}

at::Tensor Decoder::logits_of(const Walk& walk) {
  const LedgerScope scope(Purpose::kLoss);
  const model::LlamaModel& model = *run_.model;
  const model::UnitTensors& head = run_.shards->stage(model.head_unit());
  const at::Tensor x = walk.empty() ? at::Tensor() : ops::take_rows(walk.x, as_tensor(walk.last));
  if (model.head_stages().empty()) return walk.empty() ? at::Tensor() : model.logits(x, head);
  at::Tensor logits;
  if (!walk.empty())
    logits = at::empty({x.size(0), run_.config.vocab_size}, at::TensorOptions().device(device_).dtype(at::kFloat));
  const bool apart = !schedule_.pieces().head.empty();
  for (std::size_t i = 0; i < model.head_stages().size(); ++i) {
    const std::size_t stage = model.head_stages()[i];
    if (apart) schedule_.enter_head_piece(i);
    if (!walk.empty()) {
      const at::Tensor& piece = run_.shards->stage(stage).weights[model::LlamaModel::kPieceSlot];
      logits.narrow(1, model.first_row(stage), piece.size(0))
          .copy_(model::logits_of_piece(run_.config, x, head.weights[model::LlamaModel::kNormSlot], piece));
    }
    if (apart) schedule_.leave_head_piece(i);
  }
  return logits;
}

at::Tensor Decoder::extend(Sequences& sequences, std::span<const std::vector<std::int32_t>> tokens) {
  Walk walk(sequences, tokens);
  walk.context.ffn_chunk_tokens = run_.options.model.ffn_chunk_tokens;
  rotary_.lookup(walk.positions, walk.context);
  const std::size_t last = run_.shards->head_unit();
  for (std::size_t unit = 0; unit < last; ++unit) {
    if (unit == run_.shards->unit_of(0) && !schedule_.pieces().table.empty()) {
      embed_in_pieces(walk);
      continue;
    }
    schedule_.enter_forward(unit);
    forward_unit(unit, walk);
    schedule_.leave_pass(unit);
  }
  schedule_.enter_turn();
  forward_unit(last, walk);
  const at::Tensor logits = logits_of(walk);
  schedule_.leave_turn_of_pass();
  for (std::size_t i = 0; i < sequences.size(); ++i)
    sequences.lengths_[i] += static_cast<std::int64_t>(tokens[i].size());
  return logits;
}

void Decoder::finish() { schedule_.end_passes(); }

}  // namespace shardtune::train
