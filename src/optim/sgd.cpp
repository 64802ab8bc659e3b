#include "sgd.h"

#include <ATen/ATen.h>

#include <cmath>

#include "parts.h"
#include "shardtune/core/simd_level.h"

namespace shardtune::optim {

Sgd::Sgd(const OptimOptions& options, fsdp::ShardedModel& model) : Optimizer("sgd", {}, model), options_(options) {}

namespace {

/// The fused multiply-adds are those of LibTorch's `add` with a factor.
struct UpdatePart {
  [[gnu::always_inline]] static void run(float* __restrict p, const float* __restrict gradient, std::int64_t count,
                                         float gradient_scale, float decay, float minus_rate) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float g = std::fma(p[i], decay, gradient[i] * gradient_scale);
      p[i] = std::fma(g, minus_rate, p[i]);
    }
  }
};

}  // namespace

void Sgd::update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) {
  for (std::size_t unit = 0; unit < gradients.size(); ++unit) {
    if (!gradients[unit].defined() || gradients[unit].is_meta()) continue;
    auto* p = model_.trained(unit).local().mutable_data_ptr<float>();
    const auto* g = gradients[unit].const_data_ptr<float>();
    for (const auto& [parameter, at, count] : parts_of(model_, unit)) {
      const Rates rates = rates_of(options_, *parameter, learning_rate);
      simd::run<UpdatePart>(p + at, g + at, count, gradient_scale, static_cast<float>(rates.weight_decay),
                            static_cast<float>(-rates.learning_rate));
    }
  }
}

}  // namespace shardtune::optim
