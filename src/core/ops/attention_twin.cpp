#include "attention_twin.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "shardtune/core/work.h"

namespace shardtune::ops {
namespace {

/// The kernel takes this many queries and keys at a time.
struct Tile {
  Tile(std::int64_t length, std::int64_t all_keys)
      : queries(std::min<std::int64_t>(length, length >= 768   ? 256
                                               : length >= 192 ? 64
                                                               : 32)),
        keys(std::min<std::int64_t>(all_keys, 512)) {}
  std::int64_t queries, keys;
};

/// Token by token, as the kernels lay their results out.
at::Tensor by_token(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
}

/// Streaming multiprocessors of an H100, which the deterministic backward spreads the keys over.
constexpr std::int64_t kMultiprocessors = 132;

}  // namespace

void tell_attention(const at::Tensor& q, std::span<const std::int32_t> segments, bool backward) {
  if (work_listener() == nullptr) return;
  double pairs = 0;
  for (const std::int32_t length : segments) pairs += 0.5 * length * (length + 1.0);
  const double products = backward ? 5 : 2;
  work_listener()->compute({.kind = ComputeKind::kAttention,
                            .type = dtype_of(q.scalar_type()),
                            .flops = 2 * products * pairs * static_cast<double>(q.size(1) * q.size(2)),
                            .bytes = (backward ? 8.0 : 4.0) * static_cast<double>(q.nbytes())});
}

std::tuple<at::Tensor, at::Tensor> cpu_flash_forward_twin(const at::Tensor& q, std::int64_t keys) {
  const std::int64_t length = q.size(2), threads = at::get_num_threads();
  const Tile tile(length, keys);
  const at::Tensor out = by_token(q);
  const at::Tensor logsumexp = at::empty({q.size(0), length, q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  const at::Tensor scores =
      at::empty({threads, tile.queries * (tile.keys + 2 + q.size(3))}, q.options().dtype(at::kFloat));
  at::Tensor narrow;
  if (q.scalar_type() != at::kFloat) narrow = at::empty({threads, tile.queries, tile.keys}, q.options());
  return {out, logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cpu_flash_backward_twin(const at::Tensor& q, const at::Tensor& k,
                                                                       const at::Tensor& v) {
  const std::int64_t threads = at::get_num_threads();
  const Tile tile(q.size(2), k.size(2));
  at::Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  const std::int64_t space = 2 * tile.queries * tile.keys;
  const at::Tensor scores = at::empty({threads, space}, q.options().dtype(at::kFloat));
  at::Tensor narrow;
  if (q.scalar_type() != at::kFloat) narrow = at::empty({threads, space}, q.options());
  return {gq, gk, gv};
}

at::Tensor attention_twin(const at::Tensor& q, AttentionSaved* saved) {
  const at::Tensor result = at::empty({q.size(0), q.size(1) * q.size(2)}, q.options());
  const at::Tensor logsumexp = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  if (saved != nullptr) {
    saved->outputs.push_back(result);
    saved->logsumexps.push_back(logsumexp);
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_twin(const at::Tensor& q, const at::Tensor& k,
                                                                       const at::Tensor& v,
                                                                       std::span<const std::int32_t> segments) {
  const std::int64_t tokens = q.size(0), heads = q.size(1), width = q.size(2);
  const auto blocks = std::max<std::int64_t>(static_cast<std::int64_t>(segments.size()) * heads, 1);
  const std::int64_t splits = (kMultiprocessors + blocks - 1) / blocks;
  at::Tensor gq = at::empty_like(q), gk = at::empty_like(k), gv = at::empty_like(v);
  const at::Tensor dq_sums = at::empty({splits, tokens, heads, width}, q.options().dtype(at::kFloat));
  const at::Tensor row_sums = at::empty({heads, tokens}, q.options().dtype(at::kFloat));
  if (k.size(1) == heads) return {gq, gk, gv};
  const at::Tensor wide_k = at::empty({tokens, heads, width}, k.options()), wide_v = at::empty_like(wide_k);
  return {gq, gk, gv};
}

}  // namespace shardtune::ops
