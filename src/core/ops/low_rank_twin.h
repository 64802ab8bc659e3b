#pragma once
#include "shardtune/core/low_rank.h"

/// What the CUDA path of a LoRA linear allocates: matrix products over blocks of rows, sums of gradients added in place.
namespace shardtune::ops::low_rank {

void add_twin(at::Tensor& y, const at::Tensor& x, const LowRank& factors, const DropoutKey& key);
void backward_twin(const at::Tensor& x, const LowRank& factors, const DropoutKey& key);

}  // namespace shardtune::ops::low_rank
