#pragma once
#include "shardtune/optim/optimizer.h"

namespace shardtune::optim {

/// AdamW with fp32 moments that lie like the shards (torch.optim.AdamW's arithmetic): decoupled decay p *= 1 - lr * wd before
/// the update, not on parameters whose `decay` is off.
class AdamW : public Optimizer {
 public:
  AdamW(const OptimOptions& options, fsdp::ShardedModel& model);

 private:
  void update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) override;

  OptimOptions options_;
};

}  // namespace shardtune::optim
