#pragma once
#include <span>
#include <tuple>

#include "shardtune/core/ops.h"

/// What the attention kernels allocate, without their work.
namespace shardtune::ops {

/// Tells the listener of causal attention over `segments`: half of the full products. Backward makes two and a half times as
/// many.
void tell_attention(const at::Tensor& q, std::span<const std::int32_t> segments, bool backward);

/// LibTorch's flash kernels on the CPU, for q, k and v [count, H, length, E]: scores of one tile for each thread beside the
/// results. `keys`: length of k and v.
std::tuple<at::Tensor, at::Tensor> cpu_flash_forward_twin(const at::Tensor& q, std::int64_t keys);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cpu_flash_backward_twin(const at::Tensor& q, const at::Tensor& k,
                                                                       const at::Tensor& v);

/// FlashAttention 2 on the GPU, variable-length form: q [N, H, E], results as attention() and attention_backward() give
/// them. The deterministic backward adds dq in one fp32 copy for each split of the keys, and dk and dv for every query head.
at::Tensor attention_twin(const at::Tensor& q, AttentionSaved* saved);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_twin(const at::Tensor& q, const at::Tensor& k,
                                                                       const at::Tensor& v,
                                                                       std::span<const std::int32_t> segments);

}  // namespace shardtune::ops
