#include "shardtune/adapters/start.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "quantised_weight.h"
#include "shardtune/core/dora.h"
#include "shardtune/core/error.h"

namespace shardtune::adapters {
namespace {

constexpr std::string_view kMagnitude = ".lora_magnitude_vector";

std::size_t slot_of(const model::UnitSpec& spec, const std::string& name, const std::string& adapter) {
  const auto found = std::ranges::find_if(
      spec.parameters, [&](const model::Parameter& one) { return one.name == name && one.adapter == adapter; });
  SHARDTUNE_CHECK(found != spec.parameters.end(), "no parameter '{}' in unit '{}'", name, spec.name);
  return static_cast<std::size_t>(found - spec.parameters.begin());
}

}  // namespace

at::Tensor start_magnitude(const model::UnitSpec& spec, const model::UnitTensors& stage, std::size_t slot,
                           const LoraConfig& config, at::ScalarType compute) {
  const std::string& name = spec.parameters[slot].name;
  const std::string module = name.substr(0, name.size() - kMagnitude.size());
  const std::size_t base = slot_of(spec, module + ".weight", "");
  const std::vector<std::int64_t>& shape = spec.parameters[base].shape;
  at::Tensor weight = stage.weights[base];
  if (spec.parameters[base].packed_bytes > 0)
    weight = dequantised(weight, *config.base_format, shape[0], shape[1], compute);
  return ops::merged_row_norms(weight, {.a = stage.weights[slot_of(spec, module + ".lora_A.weight", config.name)],
                                        .b = stage.weights[slot_of(spec, module + ".lora_B.weight", config.name)],
                                        .scaling = config.scaling_of(module)});
}

}  // namespace shardtune::adapters
