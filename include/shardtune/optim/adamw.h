#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/optim/options.h"

namespace shardtune::optim {

/// Sum of squares of this rank's part of all gradients, in fp64. Replicated nowhere, so the sum over ranks is the global one.
double local_squared_norm(const std::vector<at::Tensor>& gradients);

/// min(1, max_norm / (norm + 1e-6)); 1 when clipping is off (max_norm 0). As torch.nn.utils.clip_grad_norm_.
float clip_coefficient(double norm, double max_norm);

/// AdamW with fp32 moments on this rank's shards (torch.optim.AdamW's arithmetic): decoupled decay p *= 1 - lr * wd before the
/// update, not on parameters whose `decay` is off. Everything is element-wise: any sharding gives the same values.
class AdamW {
 public:
  AdamW(const OptimOptions& options, fsdp::ShardedModel& model);

  /// One step from the reduced gradients (one tensor per unit, undefined for units without trained parameters), each
  /// multiplied by `gradient_scale` first.
  void step(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate);

  std::int64_t steps_taken() const { return steps_; }
  void set_steps_taken(std::int64_t steps) { steps_ = steps; }
  /// Moments of a unit, laid out like its trained shard; undefined for units without trained parameters.
  at::Tensor& exp_avg(std::size_t unit) { return exp_avg_[unit]; }
  at::Tensor& exp_avg_sq(std::size_t unit) { return exp_avg_sq_[unit]; }

 private:
  OptimOptions options_;
  fsdp::ShardedModel& model_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace shardtune::optim
