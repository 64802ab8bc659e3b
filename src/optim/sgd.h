#pragma once
#include "shardtune/optim/optimizer.h"

namespace shardtune::optim {

/// torch.optim.SGD without momentum, so without state. Weight decay is not decoupled: wd * p is added to the gradient, not for
/// parameters whose `decay` is off. Same bits as PyTorch 2.11 on a CPU.
class Sgd : public Optimizer {
 public:
  Sgd(const OptimOptions& options, fsdp::ShardedModel& model);

 private:
  void update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) override;

  OptimOptions options_;
};

}  // namespace shardtune::optim
