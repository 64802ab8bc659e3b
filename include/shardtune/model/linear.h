#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardtune/model/parameters.h"

namespace shardtune::model {

/// What the step knows about the tokens at hand; lives for one micro-batch. Letters: N tokens, E head width.
struct StepContext {
  bool training = false;  ///< dropout on
  std::uint64_t seed = 0;
  std::uint32_t step = 0;  ///< optimizer step, from 0
  std::span<const std::int32_t> segments;  ///< tokens of each attention segment, sum N
  std::span<const std::int64_t> samples;  ///< [N]
  std::span<const std::int32_t> document_positions;  ///< [N]
  at::Tensor cosine, sine;  ///< [N, E/2] in the compute type
  std::int64_t ffn_chunk_tokens = 0;  ///< tokens that a layer takes at once; 0: all

  /// The same for tokens [first, first + count), for what works token by token.
  StepContext tokens(std::int64_t first, std::int64_t count) const;
  /// The same for the tokens [first_token, first_token + count) of whole segments, [first, first + segments).
  StepContext whole_segments(std::size_t first, std::size_t count_of_segments, std::int64_t first_token,
                             std::int64_t count) const;
};

/// A linear layer without bias: weight [out, in].
struct LinearSpec {
  std::string module;  ///< full module name, e.g. model.layers.0.self_attn.q_proj
  std::int64_t in = 0, out = 0;
  std::uint32_t site = 0;  ///< layer * 16 + place in the layer (q k v o gate up down: 0..6)
};

/// One to three linears that share their input: q/k/v, gate/up, or a single one. Adapters implement it too.
class LinearGroup {
 public:
  virtual ~LinearGroup() = default;
  /// x [N, in] -> one [N, out] each.
  virtual std::vector<at::Tensor> forward(const at::Tensor& x, const UnitTensors& unit,
                                          const StepContext& context) const = 0;
  /// Gradients of the outputs -> gradient of x; adds weight gradients to unit.gradients.
  virtual at::Tensor backward(const at::Tensor& x, std::span<const at::Tensor> gradients, UnitTensors& unit,
                              const StepContext& context) const = 0;
};

/// Makes the group for some linears and enters its parameters into the unit.
using LinearGroupFactory =
    std::function<std::unique_ptr<LinearGroup>(UnitSpec& unit, const std::vector<LinearSpec>& linears)>;

/// Whether the weight of a module that is no linear of a factory's (a norm, the embedding) is trained itself.
using TrainedModules = std::function<bool(const std::string& module)>;

/// Plain linears; `trainable`: full fine-tuning.
LinearGroupFactory dense_linear_factory(bool trainable);

}  // namespace shardtune::model
