#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace shardtune::optim {

/// Sum of squares of this rank's part of all gradients, in fp64. Replicated nowhere, so the sum over ranks is the global one.
double local_squared_norm(const std::vector<at::Tensor>& gradients);

/// min(1, max_norm / (norm + 1e-6)); 1 when clipping is off (max_norm 0). As torch.nn.utils.clip_grad_norm_.
float clip_coefficient(double norm, double max_norm);

}  // namespace shardtune::optim
