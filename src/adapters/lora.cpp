#include "shardtune/adapters/lora.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "linear_adapter.h"
#include "quantised_weight.h"
#include "shardtune/quant/records.h"
#include "token_rows.h"

namespace shardtune::adapters {

std::int64_t LoraConfig::rank_of(const std::string& module) const {
  const auto own = ranks.find(module);
  return own == ranks.end() ? rank : own->second;
}

double LoraConfig::scaling_of(const std::string& module) const {
  const auto own = alphas.find(module);
  const auto r = static_cast<double>(rank_of(module));
  return (own == alphas.end() ? alpha : own->second) / (rank_stabilised ? std::sqrt(r) : r);
}

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

struct AdaptedLinear {
  std::size_t base = 0;
  std::int64_t in = 0, out = 0;
  std::uint32_t site = 0;
  struct Named {
    std::string name;
    std::unique_ptr<LinearAdapter> adapter;
  };
  std::vector<Named> adapters;  ///< in the order in which they act
};

/// Makes the adapter of a linear; its parameters bear its name.
AdaptedLinear::Named make_named(UnitSpec& unit, const LinearSpec& linear, const LoraConfig& config) {
  const std::size_t first = unit.parameters.size();
  AdaptedLinear::Named made{config.name, make_linear_adapter(unit, linear, config)};
  for (std::size_t slot = first; slot < unit.parameters.size(); ++slot) unit.parameters[slot].adapter = config.name;
  return made;
}

class LoraLinearGroup : public model::LinearGroup, public AdapterHost {
 public:
  LoraLinearGroup(UnitSpec& unit, const std::vector<LinearSpec>& linears, const LoraConfig& config)
      : base_format_(config.base_format), specs_(linears) {
    for (const LinearSpec& linear : linears) {
      // With the originals kept, the copies are entered later.
      const bool saved = config.saved_modules.contains(linear.module) && !config.keeps_originals;
      const bool packed = base_format_ && linear.module != "lm_head" && !saved;
      AdaptedLinear entry{.base = unit.add({.name = linear.module + ".weight",
                                            .shape = {linear.out, linear.in},
                                            .trainable = saved,
                                            .packed_bytes = packed ? stored_bytes(*base_format_, linear) : 0}),
                          .in = linear.in,
                          .out = linear.out,
                          .site = linear.site,
                          .adapters = {}};
      if (config.modules.contains(linear.module)) entry.adapters.push_back(make_named(unit, linear, config));
      if (const auto tokens = config.token_rows.find(linear.module); tokens != config.token_rows.end()) {
        const bool shared = config.ties_token_rows;
        entry.adapters.push_back({config.name, make_head_token_rows(unit, linear, tokens->second, shared)});
        unit.parameters.back().adapter = config.name;
      }
      linears_.push_back(std::move(entry));
    }
  }

  std::string weight() const override { return specs_.front().module + ".weight"; }

  void add(const LoraConfig& config, UnitSpec& unit) override {
    for (std::size_t i = 0; i < linears_.size(); ++i)
      if (config.modules.contains(specs_[i].module))
        linears_[i].adapters.push_back(make_named(unit, specs_[i], config));
  }

  void remove(const std::string& name) override {
    for (AdaptedLinear& linear : linears_)
      std::erase_if(linear.adapters, [&](const AdaptedLinear::Named& one) { return one.name == name; });
  }

  std::vector<at::Tensor> forward(const at::Tensor& x, const UnitTensors& unit,
                                  const StepContext& context) const override {
    std::vector<at::Tensor> outputs;
    for (const AdaptedLinear& linear : linears_) {
      at::Tensor base = weight(linear, unit, x);
      const LinearCall call{x, base, unit, context, linear.site};
      const std::vector<const LinearAdapter*> active = active_adapters(linear, unit);
      at::Tensor y = ops::linear(x, base);
      let_go(base, active);
      for (const LinearAdapter* adapter : active) adapter->forward(y, call);
      outputs.push_back(std::move(y));
    }
    return outputs;
  }

  at::Tensor backward(const at::Tensor& x, std::span<const at::Tensor> gradients, UnitTensors& unit,
                      const StepContext& context) const override {
    at::Tensor x_gradient;
    for (std::size_t i = 0; i < linears_.size(); ++i)
      backward_linear(linears_[i], x, gradients[i], unit, context, x_gradient);
    return x_gradient;
  }

 private:
  /// A dequantised weight is large: it goes before the adapters need room, when none of them reads it.
  static void let_go(at::Tensor& base, const std::vector<const LinearAdapter*>& active) {
    if (std::ranges::none_of(active, &LinearAdapter::reads_weight)) base.reset();
  }

  /// What comes out of the base and the first `count` adapters.
  static at::Tensor result(const LinearCall& call, const std::vector<const LinearAdapter*>& active, std::size_t count) {
    at::Tensor y = ops::linear(call.x, call.weight);
    for (std::size_t k = 0; k < count; ++k) active[k]->forward(y, call);
    return y;
  }

  void backward_linear(const AdaptedLinear& linear, const at::Tensor& x, const at::Tensor& gradient, UnitTensors& unit,
                       const StepContext& context, at::Tensor& x_gradient) const {
    at::Tensor base = weight(linear, unit, x);
    const LinearCall call{x, base, unit, context, linear.site};
    const std::vector<const LinearAdapter*> active = active_adapters(linear, unit);
    std::vector<LinearAdapter::Passage> passages(active.size());
    at::Tensor back = gradient;
    for (std::size_t k = active.size(); k-- > 0;) {
      passages[k] = active[k]->pass(back, call);
      back = passages[k].before;
    }
    ops::add_matmul(x_gradient, back, base);
    let_go(base, active);
    if (at::Tensor& saved = unit.gradients[linear.base]; saved.defined()) ops::add_weight_gradient(saved, back, x);
    for (std::size_t k = 0; k < active.size(); ++k)
      active[k]->backward(
          passages[k], call, [&] { return result(call, active, k); }, x_gradient, unit);
  }

  static std::vector<const LinearAdapter*> active_adapters(const AdaptedLinear& linear, const UnitTensors& unit) {
    std::vector<const LinearAdapter*> active;
    for (const auto& [name, adapter] : linear.adapters)
      if (adapter->is_gathered(unit)) active.push_back(adapter.get());
    return active;
  }

  /// The base's weight in the type of x.
  at::Tensor weight(const AdaptedLinear& linear, const UnitTensors& unit, const at::Tensor& x) const {
    const at::Tensor& stored = unit.weights[linear.base];
    return stored.scalar_type() == at::kByte
               ? dequantised(stored, *base_format_, linear.out, linear.in, x.scalar_type())
               : stored.to(x.scalar_type());
  }

  std::optional<quant::Format> base_format_;
  std::vector<LinearSpec> specs_;
  std::vector<AdaptedLinear> linears_;
};

}  // namespace

model::LinearGroupFactory lora_linear_factory(const LoraConfig& config, const std::shared_ptr<AdapterHosts>& hosts) {
  return [config, hosts](UnitSpec& unit, const std::vector<LinearSpec>& linears) {
    auto group = std::make_unique<LoraLinearGroup>(unit, linears, config);
    if (hosts) hosts->push_back(group.get());
    return group;
  };
}

}  // namespace shardtune::adapters
