#pragma once
#include <cstdint>

#include "shardtune/checkpoint/checkpoint.h"

namespace shardtune::train {

/// The dynamic loss scale of fp16 (torch.amp.GradScaler's rule and numbers): a step whose gradients overflow is skipped and
/// halves the scale, kLossScaleGrowthSteps good steps in a row double it. Powers of two only: scaling and unscaling are
/// exact.
class LossScaler {
 public:
  explicit LossScaler(double scale = 65536, std::int64_t good_steps = 0) : scale_(scale), good_steps_(good_steps) {}

  double scale() const { return scale_; }
  std::int64_t good_steps() const { return good_steps_; }
  /// After each step: whether its gradients were finite.
  void update(bool finite) {
    if (!finite) {
      scale_ /= 2;
      good_steps_ = 0;
    } else if (++good_steps_ == checkpoint::kLossScaleGrowthSteps) {
      scale_ *= 2;
      good_steps_ = 0;
    }
  }

 private:
  double scale_;
  std::int64_t good_steps_;
};

}  // namespace shardtune::train
