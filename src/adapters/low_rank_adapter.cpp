#include <ATen/ATen.h>

#include "linear_adapter.h"
#include "shardtune/core/low_rank.h"

namespace shardtune::adapters {
namespace {

using model::LinearSpec;
using model::UnitSpec;
using model::UnitTensors;

/// y += scaling * dropout(x) A^T B^T.
class LoraAdapter : public LinearAdapter {
 public:
  LoraAdapter(UnitSpec& unit, const LinearSpec& linear, const LoraConfig& config)
      : scaling_(config.scaling_of(linear.module)), dropout_(config.dropout) {
    const std::int64_t rank = config.rank_of(linear.module);
    a_ = unit.add({.name = linear.module + ".lora_A.weight",
                   .shape = {rank, linear.in},
                   .trainable = true,
                   .initial = model::Initial::kLoraA});
    b_ = unit.add({.name = linear.module + ".lora_B.weight",
                   .shape = {linear.out, rank},
                   .trainable = true,
                   .initial = model::Initial::kZero});
  }

  bool is_gathered(const UnitTensors& unit) const override {
    return unit.weights[a_].defined() && unit.weights[b_].defined();
  }

  void forward(at::Tensor& y, const LinearCall& call) const override {
    ops::add_low_rank(y, call.x, factors(call.unit), key(call));
  }

  Passage pass(const at::Tensor& gradient, const LinearCall&) const override {
    return {.after = gradient, .before = gradient, .scale = {}};
  }

  void backward(const Passage& passage, const LinearCall& call, const std::function<at::Tensor()>&,
                at::Tensor& x_gradient, UnitTensors& unit) const override {
    at::Tensor &a = unit.gradients[a_], &b = unit.gradients[b_];
    ops::low_rank_backward(call.x, passage.after, factors(call.unit), key(call), x_gradient, a.defined() ? &a : nullptr,
                           b.defined() ? &b : nullptr);
  }

 protected:
  ops::LowRank factors(const UnitTensors& unit) const {
    return {.a = unit.weights[a_], .b = unit.weights[b_], .scaling = scaling_};
  }

  ops::DropoutKey key(const LinearCall& call) const {
    return {.seed = call.context.seed,
            .step = call.context.step,
            .site = call.site,
            .probability = call.context.training ? dropout_ : 0,
            .samples = call.context.samples,
            .document_positions = call.context.document_positions};
  }

  std::size_t a_ = 0, b_ = 0;
  double scaling_, dropout_;
};

}  // namespace

std::unique_ptr<LinearAdapter> make_linear_adapter(UnitSpec& unit, const LinearSpec& linear, const LoraConfig& config) {
  return std::make_unique<LoraAdapter>(unit, linear, config);
}

}  // namespace shardtune::adapters
