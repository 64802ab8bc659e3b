#include "shardtune/model/decoder_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace shardtune::model {

DecoderLayer::DecoderLayer(const ModelConfig& config, std::int64_t index, UnitSpec& unit,
                           const LinearGroupFactory& factory, bool train_norms)
    : config_(config) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto site = [&](int place) { return static_cast<std::uint32_t>(index * 16 + place); };
  const std::int64_t d = config.hidden_size, f = config.intermediate_size;
  const std::int64_t query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
  const auto norm = [&](const char* name) {
    return unit.add({.name = prefix + name, .shape = {d}, .trainable = train_norms, .decay = false});
  };
  attention_norm_ = norm("input_layernorm.weight");
  qkv_ = factory(unit, {{prefix + "self_attn.q_proj", d, query, site(0)},
                        {prefix + "self_attn.k_proj", d, key, site(1)},
                        {prefix + "self_attn.v_proj", d, key, site(2)}});
  output_ = factory(unit, {{prefix + "self_attn.o_proj", query, d, site(3)}});
  feed_forward_norm_ = norm("post_attention_layernorm.weight");
  gate_up_ = factory(unit, {{prefix + "mlp.gate_proj", d, f, site(4)}, {prefix + "mlp.up_proj", d, f, site(5)}});
  down_ = factory(unit, {{prefix + "mlp.down_proj", f, d, site(6)}});
}

at::Tensor DecoderLayer::forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                 LayerSaved* saved) const {
  const std::int64_t tokens = x.size(0);
  const auto weight = [&](std::size_t slot) { return unit.weights[slot].to(x.scalar_type()); };

  auto qkv = qkv_->forward(ops::rms_norm(x, weight(attention_norm_), config_.norm_epsilon), unit, context);
  at::Tensor q = qkv[0].view({tokens, config_.heads, config_.head_dim});
  at::Tensor k = qkv[1].view({tokens, config_.kv_heads, config_.head_dim});
  const at::Tensor v = qkv[2].view({tokens, config_.kv_heads, config_.head_dim});
  ops::apply_rotary(q, context.cosine, context.sine, /*inverse=*/false);
  ops::apply_rotary(k, context.cosine, context.sine, /*inverse=*/false);
  const at::Tensor attended = ops::attention(q, k, v, context.segments, saved ? &saved->attention : nullptr);
  const at::Tensor middle = output_->forward(attended, unit, context)[0].add_(x);

  auto gate_up =
      gate_up_->forward(ops::rms_norm(middle, weight(feed_forward_norm_), config_.norm_epsilon), unit, context);
  at::Tensor result = down_->forward(ops::swiglu(gate_up[0], gate_up[1]), unit, context)[0].add_(middle);
  if (saved != nullptr) {
    saved->input = x;
    saved->q = q;
    saved->k = k;
    saved->v = v;
    saved->attended = attended;
    saved->middle = middle;
    saved->gate = gate_up[0];
    saved->up = gate_up[1];
  }
  return result;
}

at::Tensor DecoderLayer::backward(const at::Tensor& gradient, LayerSaved saved, UnitTensors& unit,
                                  const StepContext& context) const {
  const std::int64_t tokens = gradient.size(0);
  const auto weight = [&](std::size_t slot) { return unit.weights[slot].to(gradient.scalar_type()); };
  const auto norm_backward = [&](const at::Tensor& g, const at::Tensor& x, std::size_t slot) {
    at::Tensor* sink = unit.gradients[slot].defined() ? &unit.gradients[slot] : nullptr;
    return ops::rms_norm_backward(g, x, weight(slot), config_.norm_epsilon, sink);
  };

  // Feed-forward half.
  const at::Tensor activated_gradient =
      down_->backward(ops::swiglu(saved.gate, saved.up), std::span(&gradient, 1), unit, context);
  auto [gate_gradient, up_gradient] = ops::swiglu_backward(activated_gradient, saved.gate, saved.up);
  saved.gate.reset();
  saved.up.reset();
  const at::Tensor gate_up_gradients[] = {gate_gradient, up_gradient};
  at::Tensor normed = ops::rms_norm(saved.middle, weight(feed_forward_norm_), config_.norm_epsilon);
  at::Tensor middle_gradient =
      norm_backward(gate_up_->backward(normed, gate_up_gradients, unit, context), saved.middle, feed_forward_norm_);
  middle_gradient.add_(gradient);

  // Attention half.
  const at::Tensor attended_gradient = output_->backward(saved.attended, std::span(&middle_gradient, 1), unit, context);
  auto [gq, gk, gv] =
      ops::attention_backward(attended_gradient, saved.q, saved.k, saved.v, context.segments, saved.attention);
  ops::apply_rotary(gq, context.cosine, context.sine, /*inverse=*/true);
  ops::apply_rotary(gk, context.cosine, context.sine, /*inverse=*/true);
  const at::Tensor qkv_gradients[] = {gq.view({tokens, -1}), gk.view({tokens, -1}), gv.view({tokens, -1})};
  normed = ops::rms_norm(saved.input, weight(attention_norm_), config_.norm_epsilon);
  at::Tensor result = norm_backward(qkv_->backward(normed, qkv_gradients, unit, context), saved.input, attention_norm_);
  return result.add_(middle_gradient);
}

}  // namespace shardtune::model
