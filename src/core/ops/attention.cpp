#include <ATen/ATen.h>

#include <limits>
#include <optional>

#include "attention_twin.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/shape_only.h"

namespace shardtune::ops {
namespace {

/// Neighbouring segments of equal length are one batch for the kernel.
struct Group {
  std::int64_t first_token = 0, count = 0, length = 0;
};

std::vector<Group> group_segments(std::span<const std::int32_t> segments) {
  std::vector<Group> groups;
  std::int64_t token = 0;
  for (const std::int32_t length : segments) {
    if (!groups.empty() && groups.back().length == length) ++groups.back().count;
    else groups.push_back({token, 1, length});
    token += length;
  }
  return groups;
}

/// [N, heads, E] -> [count, heads, length, E] view of one group.
at::Tensor batch_view(const at::Tensor& x, const Group& group) {
  return x.narrow(0, group.first_token, group.count * group.length)
      .view({group.count, group.length, x.size(1), x.size(2)})
      .transpose(1, 2);
}

/// Each key/value head serves H / K query heads.
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t repeat = heads / x.size(1);
  if (repeat == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), repeat, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

at::Tensor sum_heads(const at::Tensor& gradient, std::int64_t heads) {
  const std::int64_t repeat = gradient.size(1) / heads;
  if (repeat == 1) return gradient;
  return gradient.reshape({gradient.size(0), heads, repeat, gradient.size(2), gradient.size(3)}).sum(2);
}

/// The flash kernel of the CPU wants fp32 where bf16 has no instructions of its own.
at::Tensor kernel_input(const at::Tensor& x) {
  const bool as_is = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble ||
                     (x.scalar_type() == at::kBFloat16 && has_fast_bf16());
  return as_is ? x : x.to(at::kFloat);
}

/// Puts one group's [count, heads, length, E] into `result` [N, heads, E] of `type`. The kernels lay their results out token by
/// token, so the only group's is the result as it is.
void place(at::Tensor& result, const at::Tensor& part, at::IntArrayRef shape, const Group& group, std::size_t groups,
           at::ScalarType type) {
  if (groups == 1) {
    result = part.to(type).transpose(1, 2).reshape(shape).contiguous();
    return;
  }
  if (!result.defined()) result = at::empty(shape, part.options().dtype(type));
  batch_view(result, group).copy_(part);
}

/// The kernels of LibTorch's CPU, or what they allocate.
std::tuple<at::Tensor, at::Tensor> flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (q.is_meta()) return cpu_flash_forward_twin(q, k.size(2));
  return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, /*is_causal=*/true);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(const at::Tensor& gradient, const at::Tensor& q,
                                                              const at::Tensor& k, const at::Tensor& v,
                                                              const at::Tensor& out, const at::Tensor& logsumexp) {
  if (q.is_meta()) return cpu_flash_backward_twin(q, k, v);
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, q, k, v, out, logsumexp, 0.0,
                                                                  /*is_causal=*/true);
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     std::span<const std::int32_t> segments, AttentionSaved* saved) {
  const std::int64_t tokens = q.size(0), heads = q.size(1), width = q.size(2);
  const std::vector<Group> groups = group_segments(segments);
  tell_attention(q, segments, /*backward=*/false);
  if (!goes_cpu_way(q)) return attention_twin(q, saved);
  at::Tensor result;
  for (const Group& group : groups) {
    const at::Tensor qg = kernel_input(batch_view(q, group));
    const at::Tensor kg = repeat_heads(kernel_input(batch_view(k, group)), heads);
    const at::Tensor vg = repeat_heads(kernel_input(batch_view(v, group)), heads);
    auto [out, lse] = flash_forward(qg, kg, vg);
    place(result, out, q.sizes(), group, groups.size(), q.scalar_type());
    if (saved != nullptr) {
      saved->outputs.push_back(out.scalar_type() == result.scalar_type() ? batch_view(result, group) : out);
      saved->logsumexps.push_back(lse);
    }
  }
  if (!result.defined()) result = at::empty_like(q);
  return result.view({tokens, heads * width});
}

namespace {

/// [n, heads, E] -> [1, heads, n, E].
at::Tensor one_batch(const at::Tensor& x) { return kernel_input(x.transpose(0, 1).unsqueeze(0)); }

/// The last q.size(0) tokens of a sequence over all of it: q [n, H, E], k and v [tokens, K, E] -> [n, H, E].
at::Tensor attend_to_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t now = q.size(0), heads = q.size(1), kv_heads = k.size(1), tokens = k.size(0);
  const auto kernel = [](const at::Tensor& qg, const at::Tensor& kg, const at::Tensor& vg, bool causal,
                         const std::optional<at::Tensor>& mask) {
    if (qg.is_meta()) return std::get<0>(cpu_flash_forward_twin(qg, kg.size(2)));
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(qg, kg, vg, 0.0, causal, mask));
  };
  // One token: the query heads of a key/value head stand as rows of its one query matrix, so that no keys are repeated.
  if (now == 1) {
    const at::Tensor qg = kernel_input(q.view({1, kv_heads, heads / kv_heads, q.size(2)}));
    return kernel(qg, one_batch(k), one_batch(v), false, {}).reshape({1, heads, q.size(2)});
  }
  std::optional<at::Tensor> mask;
  if (now < tokens)
    mask = at::full({now, tokens}, -std::numeric_limits<float>::infinity(), q.options().dtype(at::kFloat))
               .triu(tokens - now + 1);
  const at::Tensor qg = one_batch(q);
  if (mask) mask = mask->to(qg.scalar_type());
  return kernel(qg, repeat_heads(one_batch(k), heads), repeat_heads(one_batch(v), heads), !mask, mask)
      .squeeze(0)
      .transpose(0, 1);
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q, std::span<const std::int32_t> segments,
                            std::span<const at::Tensor> keys, std::span<const at::Tensor> values) {
  at::Tensor result = at::empty_like(q);
  std::int64_t token = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const at::Tensor part = q.narrow(0, token, segments[i]);
    result.narrow(0, token, segments[i]).copy_(attend_to_sequence(part, keys[i], values[i]));
    token += segments[i];
  }
  return result.view({q.size(0), q.size(1) * q.size(2)});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& gradient, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  std::span<const std::int32_t> segments,
                                                                  const AttentionSaved& saved) {
  const std::int64_t heads = q.size(1), kv_heads = k.size(1);
  tell_attention(q, segments, /*backward=*/true);
  if (!goes_cpu_way(q)) return attention_backward_twin(q, k, v, segments);
  at::Tensor gq, gk, gv;
  const at::Tensor g = gradient.view({q.size(0), heads, q.size(2)});
  const std::vector<Group> groups = group_segments(segments);
  SHARDTUNE_CHECK(saved.outputs.size() == groups.size(), "attention saved {} groups, wants {}", saved.outputs.size(),
                  groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Group& group = groups[i];
    const at::Tensor qg = kernel_input(batch_view(q, group));
    const at::Tensor kg = repeat_heads(kernel_input(batch_view(k, group)), heads);
    const at::Tensor vg = repeat_heads(kernel_input(batch_view(v, group)), heads);
    const auto [dq, dk, dv] =
        flash_backward(kernel_input(batch_view(g, group)), qg, kg, vg, saved.outputs[i], saved.logsumexps[i]);
    place(gq, dq, q.sizes(), group, groups.size(), q.scalar_type());
    place(gk, sum_heads(dk, kv_heads), k.sizes(), group, groups.size(), k.scalar_type());
    place(gv, sum_heads(dv, kv_heads), v.sizes(), group, groups.size(), v.scalar_type());
  }
  if (groups.empty()) return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  return {gq, gk, gv};
}

}  // namespace shardtune::ops
