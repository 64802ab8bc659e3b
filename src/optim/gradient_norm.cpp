#include "shardtune/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace shardtune::optim {

double local_squared_norm(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (gradient.is_meta()) return 1;  // the planner's value
    const auto* g = gradient.const_data_ptr<float>();
    for (std::int64_t i = 0; i < gradient.numel(); ++i) sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  }
  return sum;
}

float clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0f;
  return std::min(1.0f, static_cast<float>(max_norm) / (static_cast<float>(norm) + 1e-6f));
}

}  // namespace shardtune::optim
