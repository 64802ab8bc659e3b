#include "shardtune/model/llama.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "target_rows.h"

namespace shardtune::model {

RotaryTable::RotaryTable(const ModelConfig& config, const at::TensorOptions& options)
    : inverse_frequencies_(rotary_inverse_frequencies(config.rotary, config.head_dim)), options_(options) {}

namespace {

void fill_table(at::Tensor& cosine, at::Tensor& sine, const std::vector<float>& frequencies) {
  if (cosine.is_meta()) return;
  auto *c = cosine.mutable_data_ptr<float>(), *s = sine.mutable_data_ptr<float>();
  for (std::int64_t position = 0; position < cosine.size(0); ++position)
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      *c++ = static_cast<float>(std::cos(static_cast<double>(angle)));
      *s++ = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
}

}  // namespace

void RotaryTable::lookup(std::span<const std::int32_t> positions, StepContext& context) {
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  const std::int64_t needed = positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end()) + 1;
  if (!cosine_.defined() || cosine_.size(0) < needed) {
    at::Tensor cosine = at::empty({needed, half}, options_.dtype(at::kFloat)), sine = at::empty_like(cosine);
    fill_table(cosine, sine, inverse_frequencies_);
    cosine_ = cosine.to(options_.dtype());
    sine_ = sine.to(options_.dtype());
  }
  at::Tensor index = at::empty({static_cast<std::int64_t>(positions.size())}, at::kLong);
  std::copy(positions.begin(), positions.end(), index.mutable_data_ptr<std::int64_t>());
  context.cosine = ops::take_rows(cosine_, index);
  context.sine = ops::take_rows(sine_, index);
}

LlamaModel::LlamaModel(const ModelConfig& config, const LinearGroupFactory& factory, const TrainedModules& trained,
                       bool untie, const EmbeddingAdapterFactory& embedding_adapter, std::int64_t table_pieces)
    : config_(config) {
  const auto layer_count = static_cast<std::size_t>(config.layers);
  units_.resize(layer_count + 2);
  units_[0].name = "embedding";
  const std::int64_t rows_in_base = config.stored_vocab_size < config.vocab_size ? config.stored_vocab_size : 0;
  units_[0].add({.name = "model.embed_tokens.weight",
                 .shape = {config.vocab_size, config.hidden_size},
                 .trainable = trained("model.embed_tokens"),
                 .embedding = true,
                 .rows_in_base = rows_in_base});
  if (embedding_adapter) embedding_adapter_ = embedding_adapter(units_[0], config);
  layers_.reserve(layer_count);
  for (std::size_t i = 0; i < layer_count; ++i) {
    units_[i + 1].name = fmt::format("layer {}", i);
    layers_.emplace_back(config, static_cast<std::int64_t>(i), units_[i + 1], factory, trained);
  }
  UnitSpec& head = units_[layer_count + 1];
  head.name = "head";
  head.add(
      {.name = "model.norm.weight", .shape = {config.hidden_size}, .trainable = trained("model.norm"), .decay = false});
  head_ = factory(head,
                  {{"lm_head", config.hidden_size, config.vocab_size, static_cast<std::uint32_t>(config.layers * 16)}});
  head.parameters[kHeadSlot].borrowed = config.tied_embeddings && !untie;
  head.parameters[kHeadSlot].rows_in_base = rows_in_base;
  if (config.tied_embeddings) head.parameters[kHeadSlot].base_name = "model.embed_tokens.weight";
  cut_tables(table_pieces > 0 ? table_pieces : table_pieces_of(config));
}

at::Tensor LlamaModel::embed(const at::Tensor& ids, const UnitTensors& embedding, at::ScalarType type,
                             std::vector<at::Tensor>* saved) const {
  at::Tensor x = ops::embedding(embedding.weights[kEmbeddingSlot], ids).to(type);
  if (embedding_adapter_) embedding_adapter_->apply(x, ids, embedding, saved);
  return x;
}

void LlamaModel::embed_backward(const at::Tensor& gradient, const at::Tensor& ids, std::span<const at::Tensor> saved,
                                UnitTensors& embedding) const {
  at::Tensor of_rows = gradient;
  if (embedding_adapter_) embedding_adapter_->backward(of_rows, ids, saved, embedding);
  at::Tensor& table = embedding.gradients[kEmbeddingSlot];
  if (table.defined()) ops::add_embedding_gradient(table, of_rows, ids, config_.padding_index);
}

namespace {

/// Rows of logits [n, V] whose target has the largest one.
std::int64_t count_correct(const at::Tensor& logits, const at::Tensor& targets) {
  ops::Largest largest;
  ops::add_largest(largest, logits, 0);
  std::int64_t correct = 0;
  for (std::int64_t n = 0; n < targets.size(0); ++n)
    correct += largest.classes[static_cast<std::size_t>(n)] == targets.const_data_ptr<std::int64_t>()[n];
  return correct;
}

}  // namespace

LlamaModel::LossResult LlamaModel::loss(const at::Tensor& x, std::span<const std::int32_t> targets, UnitTensors& head,
                                        const StepContext& context, double scale, bool want_gradient) const {
  const TargetRows rows(targets, context);
  const StepContext row_context = rows.seen_from(context);
  const at::Tensor norm = head.weights[kNormSlot].to(x.scalar_type());
  at::Tensor* norm_sink = head.gradients[kNormSlot].defined() ? &head.gradients[kNormSlot] : nullptr;
  // Once for all chunks; gradients go where they were to go.
  UnitTensors in_type_of_x = head;
  in_type_of_x.weights[kHeadSlot] = head.weights[kHeadSlot].to(x.scalar_type());
  LossResult result;
  if (want_gradient) result.gradient = at::zeros_like(x);
  const std::int64_t chunk = loss_chunk_rows(config_.vocab_size);
  for (std::int64_t first = 0; first < rows.where.size(0); first += chunk) {
    const std::int64_t count = std::min(chunk, rows.where.size(0) - first);
    const StepContext chunk_context = row_context.tokens(first, count);
    const at::Tensor positions = rows.where.narrow(0, first, count);
    const at::Tensor hidden = ops::take_rows(x, positions);
    const at::Tensor normed = ops::rms_norm(hidden, norm, config_.norm_epsilon);
    at::Tensor logits = head_->forward(normed, in_type_of_x, chunk_context)[0];
    if (logits.scalar_type() != at::kBFloat16) logits = logits.to(at::kFloat);
    if (!want_gradient) result.correct += count_correct(logits, rows.classes.narrow(0, first, count));
    result.loss_sum += ops::cross_entropy_in_place(logits, rows.classes.narrow(0, first, count), scale, want_gradient);
    if (!want_gradient) continue;
    const at::Tensor logit_gradient = logits.to(x.scalar_type());
    const at::Tensor normed_gradient =
        head_->backward(normed, std::span(&logit_gradient, 1), in_type_of_x, chunk_context);
    ops::put_rows(result.gradient, positions,
                  ops::rms_norm_backward(normed_gradient, hidden, norm, config_.norm_epsilon, norm_sink));
  }
  return result;
}

at::Tensor LlamaModel::logits(const at::Tensor& x, const UnitTensors& head) const {
  const at::Tensor normed = ops::rms_norm(x, head.weights[kNormSlot].to(x.scalar_type()), config_.norm_epsilon);
  return head_->forward(normed, head, StepContext{})[0].to(at::kFloat);
}

}  // namespace shardtune::model
