#include "shardtune/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "shardtune/core/error.h"

namespace shardtune::optim {

std::int64_t warmup_step_count(double warmup_steps, std::int64_t total_steps) {
  if (warmup_steps >= 1) return static_cast<std::int64_t>(warmup_steps);
  return static_cast<std::int64_t>(std::ceil(warmup_steps * static_cast<double>(total_steps)));
}

double learning_rate_at(const OptimOptions& options, std::int64_t step, std::int64_t total_steps) {
  const std::string& kind = options.lr_scheduler_type;
  if (kind == "constant") return options.learning_rate;
  const std::int64_t warmup = warmup_step_count(options.warmup_steps, total_steps);
  const auto at = static_cast<double>(step), total = static_cast<double>(total_steps),
             ramp = static_cast<double>(warmup);
  if (step < warmup) return options.learning_rate * (at / std::max(1.0, ramp));
  if (kind == "constant_with_warmup") return options.learning_rate;
  if (kind == "linear") return options.learning_rate * std::max(0.0, (total - at) / std::max(1.0, total - ramp));
  if (kind == "cosine") {
    const double progress = (at - ramp) / std::max(1.0, total - ramp);
    return options.learning_rate * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  }
  fail(ErrorClass::kInternal, "unknown lr_scheduler_type '{}'", kind);
}

}  // namespace shardtune::optim
