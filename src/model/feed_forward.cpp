#include "feed_forward.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "rows.h"
#include "shardtune/core/ops.h"

namespace shardtune::model {
namespace {

/// Calls visit(first, count) for the chunks of `tokens`.
template <typename F>
void for_each_chunk(std::int64_t tokens, std::int64_t chunk, F visit) {
  if (chunk <= 0) chunk = tokens;
  for (std::int64_t first = 0; first < tokens; first += chunk) visit(first, std::min(chunk, tokens - first));
}

}  // namespace

FeedForward::FeedForward(const ModelConfig& config, std::int64_t layer, UnitSpec& unit,
                         const LinearGroupFactory& factory, const TrainedModules& trained)
    : epsilon_(config.norm_epsilon) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto site = [&](int place) { return static_cast<std::uint32_t>(layer * 16 + place); };
  const std::int64_t d = config.hidden_size, f = config.intermediate_size;
  norm_ = unit.add({.name = prefix + "post_attention_layernorm.weight",
                    .shape = {d},
                    .trainable = trained(prefix + "post_attention_layernorm"),
                    .decay = false});
  gate_up_ = factory(unit, {{prefix + "mlp.gate_proj", d, f, site(4)}, {prefix + "mlp.up_proj", d, f, site(5)}});
  down_ = factory(unit, {{prefix + "mlp.down_proj", f, d, site(6)}});
}

at::Tensor FeedForward::forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                at::Tensor* gate, at::Tensor* up) const {
  const std::int64_t tokens = x.size(0);
  const at::Tensor weight = unit.weights[norm_].to(x.scalar_type());
  at::Tensor result;
  for_each_chunk(tokens, context.ffn_chunk_tokens, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor rows = x.narrow(0, first, count);
    const StepContext chunk = context.tokens(first, count);
    auto gate_up = gate_up_->forward(ops::rms_norm(rows, weight, epsilon_), unit, chunk);
    put_rows(result, tokens, first, down_->forward(ops::swiglu(gate_up[0], gate_up[1]), unit, chunk)[0].add_(rows));
    if (gate != nullptr) put_rows(*gate, tokens, first, std::move(gate_up[0]));
    if (up != nullptr) put_rows(*up, tokens, first, std::move(gate_up[1]));
  });
  return result;
}

at::Tensor FeedForward::backward(const at::Tensor& gradient, const at::Tensor& x, at::Tensor gate, at::Tensor up,
                                 UnitTensors& unit, const StepContext& context) const {
  const std::int64_t tokens = x.size(0);
  const at::Tensor weight = unit.weights[norm_].to(x.scalar_type());
  at::Tensor* sink = unit.gradients[norm_].defined() ? &unit.gradients[norm_] : nullptr;
  const bool kept = gate.defined();
  at::Tensor result;
  for_each_chunk(tokens, context.ffn_chunk_tokens, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor rows = x.narrow(0, first, count), rows_gradient = gradient.narrow(0, first, count);
    const StepContext chunk = context.tokens(first, count);
    const at::Tensor normed = ops::rms_norm(rows, weight, epsilon_);
    std::vector<at::Tensor> gate_up;
    if (kept) gate_up = {gate.narrow(0, first, count), up.narrow(0, first, count)};
    else gate_up = gate_up_->forward(normed, unit, chunk);
    const at::Tensor activated_gradient =
        down_->backward(ops::swiglu(gate_up[0], gate_up[1]), std::span(&rows_gradient, 1), unit, chunk);
    ops::swiglu_backward(activated_gradient, gate_up[0], gate_up[1]);
    const at::Tensor normed_gradient = gate_up_->backward(normed, gate_up, unit, chunk);
    gate_up.clear();
    put_rows(result, tokens, first,
             ops::rms_norm_backward(normed_gradient, rows, weight, epsilon_, sink).add_(rows_gradient));
  });
  return result;
}

}  // namespace shardtune::model
