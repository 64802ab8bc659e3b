#include <ATen/ATen.h>

#include "linear_adapter.h"
#include "shardtune/adapters/start.h"
#include "shardtune/core/dora.h"
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
    const bool derived = starts_from_base(config);
    a_ = unit.add({.name = linear.module + ".lora_A.weight",
                   .shape = {rank, linear.in},
                   .trainable = true,
                   .initial = derived                      ? model::Initial::kDerived
                              : config.start == "gaussian" ? model::Initial::kNormal
                                                           : model::Initial::kLoraA});
    b_ = unit.add({.name = linear.module + ".lora_B.weight",
                   .shape = {linear.out, rank},
                   .trainable = true,
                   .initial = derived                   ? model::Initial::kDerived
                              : config.start == "false" ? model::Initial::kLoraA
                                                        : model::Initial::kZero});
  }

  bool is_gathered(const UnitTensors& unit) const override {
    return unit.weights[a_].defined() && unit.weights[b_].defined();
  }

  void forward(at::Tensor& y, const LinearCall& call) const override {
    ops::add_low_rank(y, call.x, factors(call.unit), key(call));
  }

  Passage pass(const at::Tensor& gradient, const LinearCall&) const override {
    return {.after = gradient, .before = gradient, .scale = {}, .norms = {}};
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

/// y = c base(x') + c scaling * x' A^T B^T with x' = dropout(x) and, for each output feature, c = magnitude / norm of the row of
/// W + scaling * B A; the norm is taken for a constant in backward (Liu et al., DoRA, section 4.3). As in PEFT, what the
/// base makes of x itself stays and (c - 1) base(x') is added when there is dropout. A row of zeros gives zeros.
class DoraAdapter : public LoraAdapter {
 public:
  DoraAdapter(UnitSpec& unit, const LinearSpec& linear, const LoraConfig& config) : LoraAdapter(unit, linear, config) {
    magnitude_ = unit.add({.name = linear.module + ".lora_magnitude_vector",
                           .shape = {linear.out},
                           .trainable = true,
                           .initial = model::Initial::kDerived});
  }

  bool is_gathered(const UnitTensors& unit) const override {
    return LoraAdapter::is_gathered(unit) && unit.weights[magnitude_].defined();
  }

  bool reads_weight() const override { return true; }

  void forward(at::Tensor& y, const LinearCall& call) const override {
    const auto [scale, norms] = scale_of(call);
    const ops::DropoutKey mask = key(call);
    const at::Tensor b = scaled_b(call.unit, scale);
    const ops::LowRank low{.a = call.unit.weights[a_], .b = b, .scaling = scaling_};
    if (mask.probability == 0) return ops::scale_and_add_low_rank(y, scale, call.x, low, mask);
    ops::add_scaled_columns(y, ops::linear(ops::dropout(call.x, mask), call.weight), at::sub(scale, 1));
    ops::add_low_rank(y, call.x, low, mask);
  }

  Passage pass(const at::Tensor& gradient, const LinearCall& call) const override {
    auto [scale, norms] = scale_of(call);
    const at::Tensor before = key(call).probability == 0 ? ops::scaled_columns(gradient, scale) : gradient;
    return {.after = gradient, .before = before, .scale = std::move(scale), .norms = std::move(norms)};
  }

  void backward(const Passage& passage, const LinearCall& call, const std::function<at::Tensor()>& before,
                at::Tensor& x_gradient, UnitTensors& unit) const override {
    const ops::DropoutKey mask = key(call);
    at::Tensor& a_sink = unit.gradients[a_];
    const at::Tensor b = scaled_b(call.unit, passage.scale);
    // Of c B: B's own is c times that, and the magnitude needs its product with B.
    at::Tensor b_gradient = at::zeros(b.sizes(), b.options());
    ops::low_rank_backward(call.x, passage.after, {.a = call.unit.weights[a_], .b = b, .scaling = scaling_}, mask,
                           x_gradient, a_sink.defined() ? &a_sink : nullptr, &b_gradient);
    if (at::Tensor& sink = unit.gradients[b_]; sink.defined())
      sink.add_(at::mul(b_gradient, passage.scale.unsqueeze(1)));
    if (mask.probability > 0) {
      at::Tensor dropped;
      ops::add_matmul(dropped, ops::scaled_columns(passage.after, at::sub(passage.scale, 1)), call.weight);
      x_gradient.add_(ops::dropout(dropped, mask));
    }
    at::Tensor& sink = unit.gradients[magnitude_];
    if (!sink.defined()) return;
    const at::Tensor base = mask.probability == 0 ? before() : ops::linear(ops::dropout(call.x, mask), call.weight);
    at::Tensor sums = ops::column_dots(passage.after, base);
    sums.add_(at::sum(at::mul(b_gradient, call.unit.weights[b_]).to(at::kDouble), {1}));
    sink.add_(over_norms(sums, passage.norms).to(at::kFloat));
  }

 private:
  struct Scale {
    at::Tensor scale, norms;  ///< [out]
  };

  /// x / norms; 0 where a norm is 0: nothing comes out of that row, whatever its magnitude.
  static at::Tensor over_norms(const at::Tensor& x, const at::Tensor& norms) {
    const at::Tensor zero = at::eq(norms, 0);
    return at::div(x, at::masked_fill(norms, zero, 1)).masked_fill_(zero, 0);
  }

  Scale scale_of(const LinearCall& call) const {
    at::Tensor norms = ops::merged_row_norms(call.weight, factors(call.unit));
    at::Tensor scale = over_norms(call.unit.weights[magnitude_].to(at::kFloat), norms);
    return {std::move(scale), std::move(norms)};
  }

  at::Tensor scaled_b(const UnitTensors& unit, const at::Tensor& scale) const {
    return at::mul(unit.weights[b_].to(at::kFloat), scale.unsqueeze(1));
  }

  std::size_t magnitude_ = 0;
};

}  // namespace

std::unique_ptr<LinearAdapter> make_linear_adapter(UnitSpec& unit, const LinearSpec& linear, const LoraConfig& config) {
  if (config.dora) return std::make_unique<DoraAdapter>(unit, linear, config);
  return std::make_unique<LoraAdapter>(unit, linear, config);
}

}  // namespace shardtune::adapters
