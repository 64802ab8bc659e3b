#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "shardtune/adapters/lora.h"
#include "shardtune/core/ops.h"
#include "shardtune/model/linear.h"

/// The adapters of one linear, one object each. A forward pass takes the base's result through them in order, a backward pass
/// takes the gradient back. Letters: N tokens.
namespace shardtune::adapters {

/// What an adapter sees of its linear in one call.
struct LinearCall {
  const at::Tensor& x;  ///< [N, in]
  const at::Tensor& weight;  ///< [out, in], the base's in the type of x, while somebody reads it
  const model::UnitTensors& unit;
  const model::StepContext& context;
  std::uint32_t site;  ///< of the linear
};

class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;

  /// Whether its tensors are among those of the unit; without them it takes no part.
  virtual bool is_gathered(const model::UnitTensors& unit) const = 0;

  /// Whether forward() and backward() look at LinearCall::weight; it may be gone otherwise.
  virtual bool reads_weight() const { return false; }

  /// y [N, out], the linear's result so far: brings in the adapter's.
  virtual void forward(at::Tensor& y, const LinearCall& call) const = 0;

  /// The gradient's way back, for what backward() needs to know again.
  struct Passage {
    at::Tensor after, before;  ///< [N, out], of forward's y when it returned, and when it came in
    at::Tensor scale, norms;  ///< [out], of DoRA
  };
  virtual Passage pass(const at::Tensor& gradient, const LinearCall& call) const = 0;

  /// Adds the adapter's own part to x_gradient [N, in], and its weights' gradients where unit.gradients has room for them.
  /// `before` is what forward() took in; it is called when that is needed.
  virtual void backward(const Passage& passage, const LinearCall& call, const std::function<at::Tensor()>& before,
                        at::Tensor& x_gradient, model::UnitTensors& unit) const = 0;
};

/// Enters the adapter's parameters into the unit: A and B, and a magnitude [out] with DoRA.
std::unique_ptr<LinearAdapter> make_linear_adapter(model::UnitSpec& unit, const model::LinearSpec& linear,
                                                   const LoraConfig& config);

}  // namespace shardtune::adapters
