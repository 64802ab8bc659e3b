#include "shardtune/adapters/lora.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

#include "quantised_weight.h"
#include "shardtune/core/low_rank.h"
#include "shardtune/quant/records.h"

namespace shardtune::adapters {

double LoraConfig::scaling() const {
  return alpha / (rank_stabilised ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

namespace {

using model::LinearSpec;
using model::StepContext;
using model::UnitSpec;
using model::UnitTensors;

std::int64_t stored_bytes(const quant::Format& format, const LinearSpec& linear) {
  return quant::RecordLayout(format, linear.out, linear.in).stored_bytes();
}

struct AdapterSlots {
  std::size_t a = 0, b = 0;
};

struct LoraLinear {
  std::size_t base = 0;
  std::int64_t in = 0, out = 0;
  std::optional<AdapterSlots> adapter;
  std::uint32_t site = 0;
};

class LoraLinearGroup : public model::LinearGroup {
 public:
  LoraLinearGroup(UnitSpec& unit, const std::vector<LinearSpec>& linears, const LoraConfig& config)
      : scaling_(config.scaling()), dropout_(config.dropout), base_format_(config.base_format) {
    for (const LinearSpec& linear : linears) {
      const bool packed = base_format_ && linear.module != "lm_head";
      LoraLinear entry{.base = unit.add({.name = linear.module + ".weight",
                                         .shape = {linear.out, linear.in},
                                         .packed_bytes = packed ? stored_bytes(*base_format_, linear) : 0}),
                       .in = linear.in,
                       .out = linear.out,
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
    for (const LoraLinear& linear : linears_) {
      at::Tensor y = ops::linear(x, weight(linear, unit, x));
      if (linear.adapter) ops::add_low_rank(y, x, factors(linear, unit), key(linear, context));
      outputs.push_back(std::move(y));
    }
    return outputs;
  }

  at::Tensor backward(const at::Tensor& x, std::span<const at::Tensor> gradients, UnitTensors& unit,
                      const StepContext& context) const override {
    at::Tensor result;
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const LoraLinear& linear = linears_[i];
      ops::add_matmul(result, gradients[i], weight(linear, unit, x));
      if (!linear.adapter) continue;
      at::Tensor &a = unit.gradients[linear.adapter->a], &b = unit.gradients[linear.adapter->b];
      ops::low_rank_backward(x, gradients[i], factors(linear, unit), key(linear, context), result,
                             a.defined() ? &a : nullptr, b.defined() ? &b : nullptr);
    }
    return result;
  }

 private:
  /// The base's weight in the type of x.
  at::Tensor weight(const LoraLinear& linear, const UnitTensors& unit, const at::Tensor& x) const {
    const at::Tensor& stored = unit.weights[linear.base];
    return stored.scalar_type() == at::kByte
               ? dequantised(stored, *base_format_, linear.out, linear.in, x.scalar_type())
               : stored;
  }

  ops::LowRank factors(const LoraLinear& linear, const UnitTensors& unit) const {
    return {.a = unit.weights[linear.adapter->a], .b = unit.weights[linear.adapter->b], .scaling = scaling_};
  }

  ops::DropoutKey key(const LoraLinear& linear, const StepContext& context) const {
    return {.seed = context.seed,
            .step = context.step,
            .site = linear.site,
            .probability = context.training ? dropout_ : 0,
            .samples = context.samples,
            .document_positions = context.document_positions};
  }

  double scaling_, dropout_;
  std::optional<quant::Format> base_format_;
  std::vector<LoraLinear> linears_;
};

}  // namespace

model::LinearGroupFactory lora_linear_factory(const LoraConfig& config) {
  return [config](UnitSpec& unit, const std::vector<LinearSpec>& linears) {
    return std::make_unique<LoraLinearGroup>(unit, linears, config);
  };
}

}  // namespace shardtune::adapters
