#include "shardtune/train/step_engine.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "shardtune/core/ledger_allocator.h"
#include "shardtune/core/work.h"
#include "unit_pieces.h"

namespace shardtune::train {
namespace {

at::Tensor ids_tensor(const std::vector<std::int32_t>& ids) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

/// What a layer keeps for backward counts as that.
void book_kept(const model::LayerSaved& saved) {
  for (const model::SliceSaved& slice : saved.slices) {
    for (const at::Tensor* tensor :
         {&slice.q, &slice.k, &slice.v, &slice.attended, &slice.middle, &slice.gate, &slice.up})
      ops::book(*tensor, Purpose::kKeptActivations);
    for (const at::Tensor& tensor : slice.attention.outputs) ops::book(tensor, Purpose::kKeptActivations);
    for (const at::Tensor& tensor : slice.attention.logsumexps) ops::book(tensor, Purpose::kKeptActivations);
  }
}

}  // namespace

StepEngine::StepEngine(const model::LlamaModel& model, fsdp::ShardedModel& shards, const fsdp::Policy& policy,
                       const StepSettings& settings)
    : model_(model), shards_(shards), schedule_(shards, policy, model.head_borrows(), pieces_of(model, shards)),
      settings_(settings),
      rotary_(model.config(), at::TensorOptions().device(settings.device).dtype(settings.compute_type)) {}

void StepEngine::announce(const char* verb, std::size_t stage) const {
  std::string name = stage == 0       ? fmt::format("{} embedding", verb)
                     : is_head(stage) ? fmt::format("{} head", verb)
                                      : fmt::format("{} layer {}", verb, stage - 1);
  if (work_listener() != nullptr) work_listener()->phase(name);
  ledger().set_phase(std::move(name));
}

StepEngine::Walk StepEngine::make_walk(const data::MicroBatch& batch, std::int64_t step, bool training) {
  Walk walk;
  walk.batch = &batch;
  walk.saved.resize(training ? model_.layers() : 0);
  walk.context.training = training;
  walk.context.seed = settings_.seed;
  walk.context.ffn_chunk_tokens = settings_.ffn_chunk_tokens;
  walk.context.step = static_cast<std::uint32_t>(step);
  walk.context.segments = batch.segments;
  walk.context.samples = batch.samples;
  walk.context.document_positions = batch.document_positions;
  const LedgerScope scope(Purpose::kTables);
  rotary_.lookup(batch.positions, walk.context);
  walk.ids = ids_tensor(batch.ids);
  return walk;
}

void StepEngine::forward_unit(std::size_t unit, Walk& walk, bool training) {
  if (walk.batch->empty()) return;
  const LedgerScope scope(Purpose::kWorkspace);
  for (const std::size_t stage : shards_.stages_of(unit)) {
    if (is_head(stage)) return;
    announce(training ? "forward" : "evaluation", stage);
    const model::UnitTensors& tensors = shards_.stage(stage);
    if (stage == 0 && model_.table_stages().size() > 1) {
      for (const std::size_t piece : model_.table_stages()) embed_from(piece, walk);
      continue;
    }
    if (stage == 0) {
      walk.x = model_.embed(walk.ids, tensors, settings_.compute_type, training ? &walk.embedding_saved : nullptr);
      ops::book(walk.x, Purpose::kStream);
      continue;
    }
    const std::size_t layer = stage - 1;
    if (training && keeps_input(layer)) {
      ops::book(walk.x, Purpose::kKeptActivations);
      walk.saved[layer].input = walk.x;
    }
    walk.x = model_.layer(layer).forward(walk.x, tensors, walk.context,
                                         training && keeps(layer) ? &walk.saved[layer] : nullptr);
    ops::book(walk.x, Purpose::kStream);
    if (training) book_kept(walk.saved[layer]);
  }
}

void StepEngine::pass_forward(std::size_t unit, std::span<Walk> walks, bool training) {
  if (unit == shards_.unit_of(0) && !schedule_.pieces().table.empty()) return embed_in_pieces(walks, training);
  schedule_.enter_forward(unit);
  for (Walk& walk : walks) forward_unit(unit, walk, training);
  schedule_.leave_forward(unit, training);
}

void StepEngine::backward_stage(std::size_t stage, Walk& walk) {
  const LedgerScope scope(Purpose::kWorkspace);
  announce("backward", stage);
  model::UnitTensors& tensors = shards_.stage(stage);
  if (stage == 0) {
    model_.embed_backward(walk.gradient, walk.ids, walk.embedding_saved, tensors);
    return;
  }
  const model::DecoderLayer& layer = model_.layer(stage - 1);
  walk.gradient = layer.backward(std::move(walk.gradient), std::move(walk.saved[stage - 1]), tensors, walk.context);
  ops::book(walk.gradient, Purpose::kStream);
}

void StepEngine::backward_unit(std::size_t unit, Walk& walk) {
  shards_.zero_gradients(unit);
  if (!walk.batch->empty()) {
    const auto& stages = shards_.stages_of(unit);
    forward_again(unit, stages.back() - (stages.back() > 0), walk);
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) backward_stage(*stage, walk);
  }
  shards_.reduce(unit);
}

void StepEngine::turn(Walk& walk, double scale) {
  const std::size_t unit = shards_.head_unit();
  const bool table_apart = model_.head_borrows() && shards_.unit_of(0) != unit;
  forward_unit(unit, walk, /*training=*/true);
  shards_.zero_gradients(unit);
  if (!walk.batch->empty()) {
    // Where pieces are gathered by themselves, all walks have their losses already.
    if (schedule_.pieces().head.empty()) lose(walk, scale, /*want_gradient=*/true);
    const LedgerScope scope(Purpose::kLoss);
    const auto& stages = shards_.stages_of(unit);
    forward_again(unit, model_.layers() - 1, walk);
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
      if (!is_head(*stage)) backward_stage(*stage, walk);
  }
  shards_.reduce(unit);
  if (table_apart) shards_.reduce(shards_.unit_of(0), /*use=*/1);
}

std::vector<double> StepEngine::forward_backward(std::span<const data::MicroBatch> batches, std::int64_t step,
                                                 double scale) {
  std::vector<Walk> walks;
  for (const data::MicroBatch& batch : batches) walks.push_back(make_walk(batch, step, /*training=*/true));
  const std::size_t last = shards_.head_unit();

  for (std::size_t unit = 0; unit < last; ++unit) pass_forward(unit, walks, /*training=*/true);
  schedule_.enter_turn();
  if (!schedule_.pieces().head.empty()) lose_in_pieces(walks, scale, /*want_gradient=*/true);
  for (Walk& walk : walks) turn(walk, scale);
  schedule_.leave_turn();
  for (std::size_t unit = last; unit-- > 0;) {
    make_inputs_again(unit, walks);
    schedule_.enter_backward(unit);
    for (Walk& walk : walks) backward_unit(unit, walk);
    schedule_.leave_backward(unit);
  }

  std::vector<double> losses;
  for (const Walk& walk : walks) losses.push_back(walk.loss);
  return losses;
}

template <typename F>
void StepEngine::walk_forward(Walk& walk, F at_head) {
  const std::size_t last = shards_.head_unit();
  for (std::size_t unit = 0; unit < last; ++unit) pass_forward(unit, std::span(&walk, 1), /*training=*/false);
  schedule_.enter_turn();
  forward_unit(last, walk, /*training=*/false);
  at_head();
  schedule_.leave_turn();
}

void StepEngine::lose(Walk& walk, double scale, bool want_gradient) {
  if (head_in_pieces()) return lose_in_pieces(std::span(&walk, 1), scale, want_gradient);
  if (walk.batch->empty()) return;
  const LedgerScope scope(Purpose::kLoss);
  if (want_gradient) announce("turn at", model_.head_unit());
  const auto loss =
      model_.loss(walk.x, walk.batch->targets, shards_.stage(model_.head_unit()), walk.context, scale, want_gradient);
  walk.loss = loss.loss_sum;
  walk.correct = loss.correct;
  walk.gradient = loss.gradient;
  if (want_gradient) ops::book(walk.gradient, Purpose::kStream);
  walk.x.reset();
}

model::LlamaModel::LossResult StepEngine::evaluate_tokens(const data::MicroBatch& batch) {
  Walk walk = make_walk(batch, 0, /*training=*/false);
  walk_forward(walk, [&] { lose(walk, 1.0, /*want_gradient=*/false); });
  return {.loss_sum = walk.loss, .correct = walk.correct, .gradient = {}};
}

at::Tensor StepEngine::logits(const data::MicroBatch& batch) {
  Walk walk = make_walk(batch, 0, /*training=*/false);
  at::Tensor result;
  walk_forward(walk, [&] { result = logits_of(walk); });
  return result;
}

}  // namespace shardtune::train
