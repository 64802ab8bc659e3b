#include "decoder.h"

#include <ATen/ATen.h>

#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"

namespace shardtune::train {

Sequences::Sequences(const model::ModelConfig& config, std::span<const std::int64_t> capacities, at::ScalarType type)
    : layers_(static_cast<std::size_t>(config.layers)), lengths_(capacities.size(), 0) {
  const LedgerScope scope(Purpose::kKeptActivations);
  for (model::LayerCache& layer : layers_)
    for (const std::int64_t tokens : capacities)
      for (auto* kept : {&layer.keys, &layer.values})
        kept->push_back(at::empty({tokens, config.kv_heads, config.head_dim}, at::dtype(type)));
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
    : run_(run), schedule_(*run.shards, run.policy, run.model->head_borrows()),
      rotary_(run.config, at::dtype(run.precision.compute)) {}

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
    if (stage == run_.model->head_unit()) return;
    const model::UnitTensors& tensors = run_.shards->stage(stage);
    if (stage == 0) {
      const std::vector<std::int64_t> ids(walk.flat.begin(), walk.flat.end());
      walk.x = run_.model->embed(as_tensor(ids), tensors, run_.precision.compute);
    } else {
      walk.x = run_.model->layer(stage - 1).extend(walk.x, tensors, walk.context, walk.sequences.layers_[stage - 1],
                                                   walk.sequences.lengths_);
    }
  }
}

at::Tensor Decoder::extend(Sequences& sequences, std::span<const std::vector<std::int32_t>> tokens) {
  Walk walk(sequences, tokens);
  walk.context.ffn_chunk_tokens = run_.options.model.ffn_chunk_tokens;
  rotary_.lookup(walk.positions, walk.context);
  const std::size_t last = run_.shards->head_unit();
  for (std::size_t unit = 0; unit < last; ++unit) {
    schedule_.enter_forward(unit);
    forward_unit(unit, walk);
    schedule_.leave_pass(unit);
  }
  schedule_.enter_turn();
  forward_unit(last, walk);
  at::Tensor logits;
  if (!walk.empty()) {
    const LedgerScope scope(Purpose::kLoss);
    logits =
        run_.model->logits(ops::take_rows(walk.x, as_tensor(walk.last)), run_.shards->stage(run_.model->head_unit()));
  }
  schedule_.leave_turn_of_pass();
  for (std::size_t i = 0; i < sequences.size(); ++i)
    sequences.lengths_[i] += static_cast<std::int64_t>(tokens[i].size());
  return logits;
}

void Decoder::finish() { schedule_.end_passes(); }

}  // namespace shardtune::train
