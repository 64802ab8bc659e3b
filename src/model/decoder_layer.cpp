#include "shardtune/model/decoder_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "feed_forward.h"
#include "rows.h"

namespace shardtune::model {
namespace {

/// Calls visit(first token, tokens, their context) for each slice.
template <typename F>
void for_each_slice(const StepContext& context, F visit) {
  std::int64_t token = 0;
  for (std::size_t first = 0; first < context.segments.size();) {
    std::int64_t tokens = context.segments[first];
    std::size_t end = first + 1;
    for (; end < context.segments.size(); ++end) {
      if (context.ffn_chunk_tokens > 0 && tokens + context.segments[end] > context.ffn_chunk_tokens) break;
      tokens += context.segments[end];
    }
    visit(token, tokens, context.whole_segments(first, end - first, token, tokens));
    token += tokens;
    first = end;
  }
}

/// Puts new rows behind the `length` ones that `kept` holds; gives all of them.
at::Tensor enter(const at::Tensor& kept, std::int64_t length, const at::Tensor& rows) {
  kept.narrow(0, length, rows.size(0)).copy_(rows);
  return kept.narrow(0, 0, length + rows.size(0));
}

}  // namespace

DecoderLayer::DecoderLayer(const ModelConfig& config, std::int64_t index, UnitSpec& unit,
                           const LinearGroupFactory& factory, const TrainedModules& trained)
    : config_(config) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto site = [&](int place) { return static_cast<std::uint32_t>(index * 16 + place); };
  const std::int64_t d = config.hidden_size;
  const std::int64_t query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
  norm_ = unit.add({.name = prefix + "input_layernorm.weight",
                    .shape = {d},
                    .trainable = trained(prefix + "input_layernorm"),
                    .decay = false});
  qkv_ = factory(unit, {{prefix + "self_attn.q_proj", d, query, site(0)},
                        {prefix + "self_attn.k_proj", d, key, site(1)},
                        {prefix + "self_attn.v_proj", d, key, site(2)}});
  output_ = factory(unit, {{prefix + "self_attn.o_proj", query, d, site(3)}});
  feed_forward_ = std::make_unique<FeedForward>(config, index, unit, factory, trained);
}

DecoderLayer::~DecoderLayer() = default;
DecoderLayer::DecoderLayer(DecoderLayer&&) noexcept = default;

DecoderLayer::Projected DecoderLayer::project(const at::Tensor& x, const UnitTensors& unit,
                                              const StepContext& context) const {
  const std::int64_t tokens = x.size(0);
  const at::Tensor weight = unit.weights[norm_].to(x.scalar_type());
  auto qkv = qkv_->forward(ops::rms_norm(x, weight, config_.norm_epsilon), unit, context);
  at::Tensor q = qkv[0].view({tokens, config_.heads, config_.head_dim});
  at::Tensor k = qkv[1].view({tokens, config_.kv_heads, config_.head_dim});
  const at::Tensor v = qkv[2].view({tokens, config_.kv_heads, config_.head_dim});
  ops::apply_rotary(q, context.cosine, context.sine, /*inverse=*/false);
  ops::apply_rotary(k, context.cosine, context.sine, /*inverse=*/false);
  return {q, k, v};
}

at::Tensor DecoderLayer::attend(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                SliceSaved* saved) const {
  const auto [q, k, v] = project(x, unit, context);
  const at::Tensor attended = ops::attention(q, k, v, context.segments, saved ? &saved->attention : nullptr);
  at::Tensor middle = output_->forward(attended, unit, context)[0].add_(x);
  if (saved != nullptr) {
    saved->q = q;
    saved->k = k;
    saved->v = v;
    saved->attended = attended;
    saved->middle = middle;
  }
  return middle;
}

at::Tensor DecoderLayer::forward_slice(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                       SliceSaved* saved) const {
  const at::Tensor middle = attend(x, unit, context, saved);
  return feed_forward_->forward(middle, unit, context, saved ? &saved->gate : nullptr, saved ? &saved->up : nullptr);
}

at::Tensor DecoderLayer::forward(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                 LayerSaved* saved) const {
  at::Tensor result;
  for_each_slice(context, [&](std::int64_t first, std::int64_t count, const StepContext& slice) {
    SliceSaved* of_slice = saved ? &saved->slices.emplace_back() : nullptr;
    put_rows(result, x.size(0), first, forward_slice(x.narrow(0, first, count), unit, slice, of_slice));
  });
  return result;
}

at::Tensor DecoderLayer::extend(const at::Tensor& x, const UnitTensors& unit, const StepContext& context,
                                LayerCache& cache, std::span<const std::int64_t> lengths) const {
  at::Tensor result;
  std::size_t sequence = 0;
  for_each_slice(context, [&](std::int64_t first, std::int64_t count, const StepContext& slice) {
    const at::Tensor rows = x.narrow(0, first, count);
    const auto [q, k, v] = project(rows, unit, slice);
    std::vector<at::Tensor> keys, values;
    std::int64_t token = 0;
    for (const std::int32_t tokens : slice.segments) {
      const std::int64_t length = lengths[sequence];
      keys.push_back(enter(cache.keys[sequence], length, k.narrow(0, token, tokens)));
      values.push_back(enter(cache.values[sequence], length, v.narrow(0, token, tokens)));
      token += tokens;
      ++sequence;
    }
    const at::Tensor attended = ops::cached_attention(q, slice.segments, keys, values);
    const at::Tensor middle = output_->forward(attended, unit, slice)[0].add_(rows);
    put_rows(result, x.size(0), first, feed_forward_->forward(middle, unit, slice, nullptr, nullptr));
  });
  return result;
}

at::Tensor DecoderLayer::backward(at::Tensor gradient, LayerSaved saved, UnitTensors& unit,
                                  const StepContext& context) const {
  const bool kept = !saved.slices.empty();
  std::size_t number = 0;
  for_each_slice(context, [&](std::int64_t first, std::int64_t count, const StepContext& slice) {
    const at::Tensor x = saved.input.narrow(0, first, count);
    SliceSaved of_slice;
    if (kept) of_slice = std::move(saved.slices[number++]);
    else attend(x, unit, slice, &of_slice);  // the feed-forward half is computed again inside its backward
    at::Tensor rows = backward_slice(gradient.narrow(0, first, count), x, std::move(of_slice), unit, slice);
    put_rows(gradient, saved.input.size(0), first, std::move(rows));
  });
  return gradient;
}

at::Tensor DecoderLayer::backward_slice(const at::Tensor& gradient, const at::Tensor& x, SliceSaved saved,
                                        UnitTensors& unit, const StepContext& context) const {
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
  const at::Tensor normed = ops::rms_norm(x, weight, config_.norm_epsilon);
  at::Tensor* sink = unit.gradients[norm_].defined() ? &unit.gradients[norm_] : nullptr;
  at::Tensor result = ops::rms_norm_backward(qkv_->backward(normed, qkv_gradients, unit, context), x, weight,
                                             config_.norm_epsilon, sink);
  return result.add_(middle_gradient);
}

}  // namespace shardtune::model
