#include "shardtune/optim/adamw.h"

#include <ATen/ATen.h>

#include "shardtune/core/ledger.h"

#include <algorithm>
#include <cmath>

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

AdamW::AdamW(const OptimOptions& options, fsdp::ShardedModel& model) : options_(options), model_(model) {
  const LedgerScope scope(Purpose::kOptimizer);
  exp_avg_.resize(model.units());
  exp_avg_sq_.resize(model.units());
  for (std::size_t unit = 0; unit < model.units(); ++unit) {
    if (model.trained(unit).empty()) continue;
    exp_avg_[unit] = at::zeros_like(model.trained(unit).local());
    exp_avg_sq_[unit] = at::zeros_like(model.trained(unit).local());
  }
}

namespace {

struct Constants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, gradient_scale, decay, step_size, root_correction2;
};

void update(float* p, float* m, float* v, const float* gradient, std::int64_t count, const Constants& c) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    p[i] *= c.decay;
    m[i] += (g - m[i]) * c.one_minus_beta1;
    v[i] = v[i] * c.beta2 + c.one_minus_beta2 * g * g;
    p[i] -= c.step_size * (m[i] / (std::sqrt(v[i]) / c.root_correction2 + c.epsilon));
  }
}

}  // namespace

void AdamW::step(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) {
  ++steps_;
  const auto power = static_cast<double>(steps_);
  const double correction1 = 1 - std::pow(options_.adam_beta1, power),
               correction2 = 1 - std::pow(options_.adam_beta2, power);
  Constants constants{.beta1 = static_cast<float>(options_.adam_beta1),
                      .one_minus_beta1 = static_cast<float>(1 - options_.adam_beta1),
                      .beta2 = static_cast<float>(options_.adam_beta2),
                      .one_minus_beta2 = static_cast<float>(1 - options_.adam_beta2),
                      .epsilon = static_cast<float>(options_.adam_epsilon),
                      .gradient_scale = gradient_scale,
                      .decay = 1.0f,
                      .step_size = static_cast<float>(learning_rate / correction1),
                      .root_correction2 = static_cast<float>(std::sqrt(correction2))};
  for (std::size_t unit = 0; unit < gradients.size(); ++unit) {
    if (!gradients[unit].defined()) continue;
    fsdp::FlatShard& shard = model_.trained(unit);
    if (shard.local().is_meta()) continue;
    auto *p = shard.local().mutable_data_ptr<float>(), *m = exp_avg_[unit].mutable_data_ptr<float>(),
         *v = exp_avg_sq_[unit].mutable_data_ptr<float>();
    const auto* g = gradients[unit].const_data_ptr<float>();
    shard.for_each_range([&](std::size_t slot, std::int64_t, std::int64_t, const at::Tensor& part) {
      const std::int64_t at = part.storage_offset() - shard.local().storage_offset();
      const bool decays = model_.spec(unit).parameters[slot].decay;
      constants.decay = decays ? static_cast<float>(1 - learning_rate * options_.weight_decay) : 1.0f;
      update(p + at, m + at, v + at, g + at, part.numel(), constants);
    });
  }
}

}  // namespace shardtune::optim
