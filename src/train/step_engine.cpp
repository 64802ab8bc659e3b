#include "shardtune/train/step_engine.h"

#include <ATen/ATen.h>

namespace shardtune::train {
namespace {

at::Tensor ids_tensor(const std::vector<std::int32_t>& ids) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

}  // namespace

StepEngine::StepEngine(const model::LlamaModel& model, fsdp::ShardedModel& shards, const StepSettings& settings)
    : model_(model), shards_(shards), settings_(settings), rotary_(model.config(), settings.compute_type) {}

model::StepContext StepEngine::make_context(const data::MicroBatch& batch, std::int64_t step, bool training) {
  model::StepContext context;
  context.training = training;
  context.seed = settings_.seed;
  context.step = static_cast<std::uint32_t>(step);
  context.segments = batch.segments;
  context.samples = batch.samples;
  context.document_positions = batch.document_positions;
  rotary_.lookup(batch.positions, context);
  return context;
}

void StepEngine::prefetch_head() {
  if (model_.config().tied_embeddings) shards_.prefetch(0);
  shards_.prefetch(model_.head_unit());
}

model::UnitTensors& StepEngine::unshard_head() {
  if (model_.config().tied_embeddings) shards_.unshard(0);
  return shards_.unshard(model_.head_unit());
}

void StepEngine::reshard_head() {
  if (model_.config().tied_embeddings) shards_.reshard(0);
  shards_.reshard(model_.head_unit());
}

at::Tensor StepEngine::run_layers(const data::MicroBatch& batch, const model::StepContext& context,
                                  std::vector<model::LayerSaved>* saved) {
  const bool work = !batch.empty();
  const std::size_t layers = model_.layers();
  at::Tensor x;
  shards_.prefetch(0);
  const model::UnitTensors& table = shards_.unshard(0);
  shards_.prefetch(1);
  if (work) x = model_.embed(ids_tensor(batch.ids), table, settings_.compute_type);
  shards_.reshard(0);
  for (std::size_t i = 0; i < layers; ++i) {
    const std::size_t unit = i + 1;
    const model::UnitTensors& tensors = shards_.unshard(unit);
    if (i + 1 < layers) shards_.prefetch(unit + 1);
    else prefetch_head();
    if (work) {
      model::LayerSaved* keep = saved && !settings_.recompute ? &(*saved)[i] : nullptr;
      if (saved) (*saved)[i].input = x;
      x = model_.layer(i).forward(x, tensors, context, keep);
    }
    const bool needed_next = saved && i + 1 == layers;  // backward begins with the last layer
    if (!needed_next) shards_.reshard(unit);
  }
  return x;
}

at::Tensor StepEngine::layer_backward(std::size_t unit, const at::Tensor& gradient, model::LayerSaved saved,
                                      const model::StepContext& context) {
  model::UnitTensors& tensors = shards_.unshard(unit);
  if (unit > 1) shards_.prefetch(unit - 1);  // BACKWARD_PRE
  shards_.zero_gradients(unit);
  at::Tensor result;
  if (gradient.defined()) {
    const model::DecoderLayer& layer = model_.layer(unit - 1);
    if (settings_.recompute) {
      const at::Tensor input = saved.input;
      layer.forward(input, tensors, context, &saved);
    }
    result = layer.backward(gradient, std::move(saved), tensors, context);
  }
  shards_.reduce(unit);
  shards_.reshard(unit);
  return result;
}

void StepEngine::embedding_backward(const data::MicroBatch& batch, const at::Tensor& gradient) {
  if (shards_.trained(0).empty()) return;
  // The table itself is not needed here, only room for its gradient.
  shards_.zero_gradients(0);
  if (gradient.defined())
    ops::add_embedding_gradient(shards_.gradients(0)[model::LlamaModel::kEmbeddingSlot], gradient,
                                ids_tensor(batch.ids));
  shards_.reduce(0);
}

double StepEngine::forward_backward(const data::MicroBatch& batch, std::int64_t step, double scale) {
  const model::StepContext context = make_context(batch, step, /*training=*/true);
  std::vector<model::LayerSaved> saved(model_.layers());
  const at::Tensor x = run_layers(batch, context, &saved);

  const std::size_t head = model_.head_unit();
  model::UnitTensors& tensors = unshard_head();
  shards_.zero_gradients(head);
  model::LlamaModel::LossResult loss;
  if (!batch.empty()) loss = model_.loss(x, batch.targets, tensors, context, scale, /*want_gradient=*/true);
  shards_.reduce(head);
  if (model_.config().tied_embeddings) shards_.reduce(0, /*use=*/1);
  reshard_head();

  at::Tensor gradient = std::move(loss.gradient);
  for (std::size_t unit = model_.layers(); unit >= 1; --unit)
    gradient = layer_backward(unit, gradient, std::move(saved[unit - 1]), context);
  embedding_backward(batch, gradient);
  return loss.loss_sum;
}

double StepEngine::evaluate(const data::MicroBatch& batch) {
  const model::StepContext context = make_context(batch, 0, /*training=*/false);
  const at::Tensor x = run_layers(batch, context, nullptr);
  model::UnitTensors& tensors = unshard_head();
  double sum = 0;
  if (!batch.empty()) sum = model_.loss(x, batch.targets, tensors, context, 1.0, /*want_gradient=*/false).loss_sum;
  reshard_head();
  return sum;
}

at::Tensor StepEngine::logits(const data::MicroBatch& batch) {
  const model::StepContext context = make_context(batch, 0, /*training=*/false);
  const at::Tensor x = run_layers(batch, context, nullptr);
  const model::UnitTensors& tensors = unshard_head();
  const at::Tensor result = batch.empty() ? at::Tensor() : model_.logits(x, tensors);
  reshard_head();
  return result;
}

}  // namespace shardtune::train
