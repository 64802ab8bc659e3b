#include "shardtune/model/decoder_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "feed_forward.h"

namespace shardtune::model {

DecoderLayer::DecoderLayer(const ModelConfig& config, std::int64_t index, UnitSpec& unit,
                           const LinearGroupFactory& factory, bool train_norms)
    : config_(config) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto site = [&](int place) { return static_cast<std::uint32_t>(index * 16 + place); };
  const std::int64_t d = config.hidden_size;
  const std::int64_t query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
  norm_ = unit.add({.name = prefix + "input_layernorm.weight", .shape = {d}, .trainable = train_norms, .decay = false});
  qkv_ = factory(unit, {{prefix + "self_attn.q_proj", d, query, site(0)},
                        {prefix + "self_attn.k_proj", d, key, site(1)},
                        {prefix + "self_attn.v_proj", d, key, site(2)}});
  output_ = factory(unit, {{prefix + "self_attn.o_proj", query, d, site(3)}});
  feed_forward_ = std::make_unique<FeedForward>(config, index, unit, factory, train_norms);
}

DecoderLayer::~DecoderLayer() = default;
DecoderLayer::DecoderLayer(DecoderLayer&&) noexcept = default;

at::Tensor DecoderLayer::attend(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                LayerSaved* saved) const {
  const std::int64_t tokens = x.size(0);
  const at::Tensor weight = unit.weights[norm_].to(x.scalar_type());
  auto qkv = qkv_->forward(ops::rms_norm(x, weight, config_.norm_epsilon), unit, context);
  at::Tensor q = qkv[0].view({tokens, config_.heads, config_.head_dim});
  at::Tensor k = qkv[1].view({tokens, config_.kv_heads, config_.head_dim});
  const at::Tensor v = qkv[2].view({tokens, config_.kv_heads, config_.head_dim});
  ops::apply_rotary(q, context.cosine, context.sine, /*inverse=*/false);
  ops::apply_rotary(k, context.cosine, context.sine, /*inverse=*/false);
  const at::Tensor attended = ops::attention(q, k, v, context.segments, saved ? &saved->attention : nullptr);
  at::Tensor middle = output_->forward(attended, unit, context)[0].add_(x);
  if (saved != nullptr) {
    saved->input = x;
    saved->q = q;
    saved->k = k;
    saved->v = v;
    saved->attended = attended;
    saved->middle = middle;
  }
  return middle;
}

at::Tensor DecoderLayer::forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                 LayerSaved* saved) const {
  const at::Tensor middle = attend(x, unit, context, saved);
  return feed_forward_->forward(middle, unit, context, saved ? &saved->gate : nullptr, saved ? &saved->up : nullptr);
}

LayerSaved DecoderLayer::recompute(const at::Tensor& x, const UnitTensors& unit, const StepContext& context) const {
  LayerSaved saved;
  attend(x, unit, context, &saved);
  return saved;
}

at::Tensor DecoderLayer::backward(const at::Tensor& gradient, LayerSaved saved, UnitTensors& unit,
                                  const StepContext& context) const {
  const std::int64_t tokens = gradient.size(0);
  const at::Tensor middle_gradient =
      feed_forward_->backward(gradient, saved.middle, std::move(saved.gate), std::move(saved.up), unit, context);
  saved.middle.reset();
  const at::Tensor attended_gradient = output_->backward(saved.attended, std::span(&middle_gradient, 1), unit, context);
  auto [gq, gk, gv] =
      ops::attention_backward(attended_gradient, saved.q, saved.k, saved.v, context.segments, saved.attention);
  ops::apply_rotary(gq, context.cosine, context.sine, /*inverse=*/true);
  ops::apply_rotary(gk, context.cosine, context.sine, /*inverse=*/true);
  const at::Tensor qkv_gradients[] = {gq.view({tokens, -1}), gk.view({tokens, -1}), gv.view({tokens, -1})};
  const at::Tensor weight = unit.weights[norm_].to(gradient.scalar_type());
  const at::Tensor normed = ops::rms_norm(saved.input, weight, config_.norm_epsilon);
  at::Tensor* sink = unit.gradients[norm_].defined() ? &unit.gradients[norm_] : nullptr;
  at::Tensor result = ops::rms_norm_backward(qkv_->backward(normed, qkv_gradients, unit, context), saved.input, weight,
                                             config_.norm_epsilon, sink);
  return result.add_(middle_gradient);
}

}  // namespace shardtune::model
