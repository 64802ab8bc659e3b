#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/adapters/lora.h"

/// How new adapters begin where that depends on the base's weights.
namespace shardtune::adapters {

/// The start of the DoRA magnitude in `slot` of a gathered stage: the norms [out] of the rows of the base's weight, dequantised
/// to `compute`, plus scaling * B A. Computed from whole rows, so the same on every rank.
at::Tensor start_magnitude(const model::UnitSpec& spec, const model::UnitTensors& stage, std::size_t slot,
                           const LoraConfig& config, at::ScalarType compute);

}  // namespace shardtune::adapters
