#include "shardtune/adapters/lora.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

#include "shardtune/core/ops.h"

namespace shardtune::adapters {

double LoraConfig::scaling() const {
  return alpha / (rank_stabilised ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

namespace {

using model::LinearSpec;
using model::StepContext;
using model::UnitSpec;
using model::UnitTensors;

struct AdapterSlots {
  std::size_t a = 0, b = 0;
};

struct LoraLinear {
  std::size_t base = 0;
  std::optional<AdapterSlots> adapter;
  std::uint32_t site = 0;
};

class LoraLinearGroup : public model::LinearGroup {
 public:
  LoraLinearGroup(UnitSpec& unit, const std::vector<LinearSpec>& linears, const LoraConfig& config)
      : scaling_(config.scaling()), dropout_(config.dropout) {
    for (const LinearSpec& linear : linears) {
      LoraLinear entry{.base = unit.add({.name = linear.module + ".weight", .shape = {linear.out, linear.in}}),
                       .adapter = std::nullopt,
                       .site = linear.site};
      if (config.modules.contains(linear.module)) {
        const std::size_t a = unit.add({.name = linear.module + ".lora_A.weight",
                                        .shape = {config.rank, linear.in},
                                        .trainable = true,
                                        .initial = model::Initial::kLoraA});
        const std::size_t b = unit.add({.name = linear.module + ".lora_B.weight",
                                        .shape = {linear.out, config.rank},
                                        .trainable = true,
                                        .initial = model::Initial::kZero});
        entry.adapter = AdapterSlots{a, b};
      }
      linears_.push_back(entry);
    }
  }

  std::vector<at::Tensor> forward(const at::Tensor& x, const UnitTensors& unit,
                                  const StepContext& context) const override {
    std::vector<at::Tensor> outputs;
    at::Tensor wide;  // x in the adapter's fp32, made once for the group
    for (const LoraLinear& linear : linears_) {
      at::Tensor y = ops::linear(x, unit.weights[linear.base]);
      if (linear.adapter) {
        if (!wide.defined()) wide = x.to(at::kFloat).contiguous();
        const at::Tensor reduced = at::mm(dropped(wide, linear, context), unit.weights[linear.adapter->a].t());
        add_product(y, reduced, unit.weights[linear.adapter->b].t(), scaling_);
      }
      outputs.push_back(std::move(y));
    }
    return outputs;
  }

  at::Tensor backward(const at::Tensor& x, std::span<const at::Tensor> gradients, UnitTensors& unit,
                      const StepContext& context) const override {
    at::Tensor result, wide;
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const LoraLinear& linear = linears_[i];
      if (result.defined() && result.scalar_type() == at::kFloat)
        result.addmm_(gradients[i], unit.weights[linear.base]);
      else if (result.defined()) result.add_(ops::matmul(gradients[i], unit.weights[linear.base]));
      else result = ops::matmul(gradients[i], unit.weights[linear.base]);
      if (!linear.adapter) continue;
      if (!wide.defined()) wide = x.to(at::kFloat).contiguous();
      adapter_backward(wide, gradients[i].to(at::kFloat), linear, unit, context, result);
    }
    return result;
  }

 private:
  /// Adds the gradient of x through the adapter to `result`, and the gradients of A and B to theirs.
  void adapter_backward(const at::Tensor& x, const at::Tensor& gradient, const LoraLinear& linear, UnitTensors& unit,
                        const StepContext& context, at::Tensor& result) const {
    const at::Tensor& a = unit.weights[linear.adapter->a];
    const at::Tensor& b = unit.weights[linear.adapter->b];
    const at::Tensor reduced_gradient = at::mm(gradient, b).mul_(scaling_);  // [N, R]
    at::Tensor input = x;
    if (drops(context)) {
      // Dropout is linear, so its backward is the same masking.
      const at::Tensor dropped_gradient = at::mm(reduced_gradient, a);
      at::Tensor sum = result.scalar_type() == at::kFloat ? result : result.to(at::kFloat);
      input = ops::dropout_both(x, dropped_gradient, sum, key(linear, context));
      if (!sum.is_same(result)) result.copy_(sum);
    } else {
      add_product(result, reduced_gradient, a, 1.0);
    }
    at::Tensor& a_sink = unit.gradients[linear.adapter->a];
    at::Tensor& b_sink = unit.gradients[linear.adapter->b];
    if (!a_sink.defined()) return;
    a_sink.addmm_(reduced_gradient.t(), input);
    b_sink.addmm_(gradient.t(), at::mm(input, a.t()), 1.0, scaling_);
  }

  bool drops(const StepContext& context) const { return context.training && dropout_ != 0; }

  ops::DropoutKey key(const LoraLinear& linear, const StepContext& context) const {
    return {.seed = context.seed,
            .step = context.step,
            .site = linear.site,
            .probability = dropout_,
            .samples = context.samples,
            .document_positions = context.document_positions};
  }

  at::Tensor dropped(const at::Tensor& x, const LoraLinear& linear, const StepContext& context) const {
    return drops(context) ? ops::dropout(x, key(linear, context)) : x;
  }

  /// y += scaling * a b, added in fp32 and rounded to y's type.
  static void add_product(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, double scaling) {
    if (y.scalar_type() == at::kFloat) y.addmm_(a, b, 1.0, scaling);
    else y.copy_(at::addmm(y.to(at::kFloat), a, b, 1.0, scaling));
  }

  double scaling_, dropout_;
  std::vector<LoraLinear> linears_;
};

}  // namespace

model::LinearGroupFactory lora_linear_factory(const LoraConfig& config) {
  return [config](UnitSpec& unit, const std::vector<LinearSpec>& linears) {
    return std::make_unique<LoraLinearGroup>(unit, linears, config);
  };
}

}  // namespace shardtune::adapters
