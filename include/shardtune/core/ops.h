#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "shardtune/core/dtype.h"

/// The operators of the step that need more than one implementation (CPU today; a Meta and a CUDA twin belong here too).
/// Letters: N tokens of a micro-batch laid end to end, D width, H query heads, K key/value heads, E head width, V vocabulary.
/// Everything is deterministic for a fixed thread count. No function here keeps a reference to its inputs.
namespace shardtune::ops {

at::ScalarType scalar_type(Dtype dtype);
Dtype dtype_of(at::ScalarType type);

/// The memory of a contiguous tensor on the host; the tensor keeps owning it.
std::span<std::byte> bytes_of(const at::Tensor& tensor);

/// True when bf16 matrix products run on bf16 instructions here. Without them LibTorch's bf16 path is many times slower
/// than fp32, so `linear` and `matmul` then convert to fp32, multiply, and round the result once.
bool has_fast_bf16();

/// True when this processor converts half precision by its own instructions; fp16 is refused without.
bool has_fp16();

/// x [N, in] times w [out, in] transposed -> [N, out] in x's type.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w);
/// a [n, k] times b [k, m] -> [n, m] in a's type.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b);
/// sum [n, m] += a b; an undefined sum becomes the product.
void add_matmul(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);
/// Room for the weight [out, in] of `type` that is stored as `packed` (bytes), to be filled, used and let go. On shapes alone
/// nobody fills it.
at::Tensor room_for_dequantised(const at::Tensor& packed, std::int64_t out, std::int64_t in, at::ScalarType type);
/// sink [out, in] (fp32) += gradient [N, out] transposed times x [N, in].
void add_weight_gradient(at::Tensor& sink, const at::Tensor& gradient, const at::Tensor& x);

/// Root-mean-square norm as Llama defines it: x [N, D] normalised in fp32, rounded to x's type, times weight [D].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);
/// Gradient of rms_norm for x; adds the weight's gradient to `weight_sink` [D] (fp32) when given.
at::Tensor rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             at::Tensor* weight_sink);

/// Rotary embedding in place on x [N, heads, E]; cosine and sine [N, E/2] in x's type. `inverse` turns back: the gradient.
void apply_rotary(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, bool inverse);

/// Causal attention that never crosses a segment. What attention keeps for its backward.
struct AttentionSaved {
  /// Per group of equally long neighbouring segments. Outputs are views of attention()'s result unless the kernel ran in a
  /// wider type.
  std::vector<at::Tensor> outputs, logsumexps;
};
/// q [N, H, E], k and v [N, K, E], segments: tokens of each, sum N -> [N, H * E].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     std::span<const std::int32_t> segments, AttentionSaved* saved);
/// Gradients for q, k, v in their shapes.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& gradient, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  std::span<const std::int32_t> segments,
                                                                  const AttentionSaved& saved);

/// Attention of new tokens over the sequences that they continue: q [N, H, E], segments: new tokens of each sequence, sum N;
/// keys[i] and values[i] [tokens so far, K, E] end with the new ones -> [N, H * E]. Forward alone.
at::Tensor cached_attention(const at::Tensor& q, std::span<const std::int32_t> segments,
                            std::span<const at::Tensor> keys, std::span<const at::Tensor> values);

/// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
/// Gradients for gate and up, written over them.
void swiglu_backward(const at::Tensor& gradient, at::Tensor& gate, at::Tensor& up);

/// Rows `which` [n] (int64, on the host) of x [N, D].
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& which);
/// Rows `which` of x := rows [n, D].
void put_rows(at::Tensor& x, const at::Tensor& which, const at::Tensor& rows);
/// On shapes alone: true.
bool all_finite(const at::Tensor& x);

/// Rows ids [N] of table [V, D].
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids);
/// sink [V, D] (fp32) += rows of gradient [N, D] at ids, but for rows of id `padding` (-1: none).
void add_embedding_gradient(at::Tensor& sink, const at::Tensor& gradient, const at::Tensor& ids, std::int64_t padding);

/// Token losses of logits [n, V] (fp32 or bf16, overwritten with the gradient) for targets [n]: returns the sum of
/// logsumexp - logit[target] in fp64 and leaves scale * (softmax - onehot), computed in fp32, in `logits`. fp64 sums:
/// torch's own fp32 log_softmax is off by 1e-5 over 49,152 classes.
double cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, double scale, bool want_gradient);

/// The largest logit of each of n rows and its class, of the classes seen so far.
struct Largest {
  std::vector<float> logits;
  std::vector<std::int64_t> classes;
};
/// Takes the logits [n, V] (fp32 or bf16) of the classes from `first_class` on into account; pieces come in ascending order. Of
/// equal logits the lowest class counts, as in torch.argmax. NaN is never the largest. On shapes alone: class 0.
void add_largest(Largest& largest, const at::Tensor& logits, std::int64_t first_class);

/// Where each token of a micro-batch stands, for dropout (see dropout()).
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;  ///< optimizer step
  std::uint32_t site = 0;  ///< layer * 16 + site in the layer
  double probability = 0;
  std::span<const std::int64_t> samples;  ///< [N] document of each token
  std::span<const std::int32_t> document_positions;  ///< [N] position in the document
};
/// x [N, D] with dropped elements zero and the others divided by the share of words that keep, 1 - ceil(p * 2^32) / 2^32. The
/// mask is a pure function of the key (Philox: key seed; counter sample, step, site, (position * D + column) / 4; word column
/// mod 4; kept when word >= p * 2^32), so it is computed again in backward and never stored, and does not depend on ranks or
/// batch composition. p is from 0 to 1 - 2^-32.
at::Tensor dropout(const at::Tensor& x, const DropoutKey& key);

}  // namespace shardtune::ops
