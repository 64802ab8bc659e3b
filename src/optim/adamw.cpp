#include "adamw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "parts.h"
#include "shardtune/core/ledger.h"

namespace shardtune::optim {

AdamW::AdamW(const OptimOptions& options, fsdp::ShardedModel& model)
    : Optimizer("adamw_torch", {{"exp_avg"}, {"exp_avg_sq"}}, model), options_(options) {
  const LedgerScope scope(Purpose::kOptimizer);
  for (std::size_t unit = 0; unit < model.units(); ++unit)
    if (!model.trained(unit).empty())
      for (auto& role : state_) role[unit] = at::zeros_like(model.trained(unit).local());
}

namespace {

struct Constants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, gradient_scale, decay, step_size, root_correction2;
};

void update_part(float* p, float* m, float* v, const float* gradient, std::int64_t count, const Constants& c) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    p[i] *= c.decay;
    m[i] += (g - m[i]) * c.one_minus_beta1;
    v[i] = v[i] * c.beta2 + c.one_minus_beta2 * g * g;
    p[i] -= c.step_size * (m[i] / (std::sqrt(v[i]) / c.root_correction2 + c.epsilon));
  }
}

}  // namespace

void AdamW::update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) {
  const auto power = static_cast<double>(steps_taken());
  const double correction1 = 1 - std::pow(options_.adam_beta1, power),
               correction2 = 1 - std::pow(options_.adam_beta2, power);
  Constants constants{.beta1 = static_cast<float>(options_.adam_beta1),
                      .one_minus_beta1 = static_cast<float>(1 - options_.adam_beta1),
                      .beta2 = static_cast<float>(options_.adam_beta2),
                      .one_minus_beta2 = static_cast<float>(1 - options_.adam_beta2),
                      .epsilon = static_cast<float>(options_.adam_epsilon),
                      .gradient_scale = gradient_scale,
                      .decay = 1.0f,
                      .step_size = 0.0f,
                      .root_correction2 = static_cast<float>(std::sqrt(correction2))};
  for (std::size_t unit = 0; unit < gradients.size(); ++unit) {
    if (!gradients[unit].defined() || gradients[unit].is_meta()) continue;
    auto *p = model_.trained(unit).local().mutable_data_ptr<float>(), *m = state_[0][unit].mutable_data_ptr<float>(),
         *v = state_[1][unit].mutable_data_ptr<float>();
    const auto* g = gradients[unit].const_data_ptr<float>();
    for (const auto& [parameter, at, count] : parts_of(model_, unit)) {
      const Rates rates = rates_of(options_, *parameter, learning_rate);
      constants.decay = static_cast<float>(1 - rates.learning_rate * rates.weight_decay);
      constants.step_size = static_cast<float>(rates.learning_rate / correction1);
      update_part(p + at, m + at, v + at, g + at, count, constants);
    }
  }
}

}  // namespace shardtune::optim
