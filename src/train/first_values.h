#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shardtune/model/parameters.h"

namespace shardtune::train {

/// First values of an adapter's parameter that no file holds: elements [begin, begin + part.numel()) of it, fp32. Random ones are a
/// function of seed, name and the element's number, so every rank can make its own part.
void fill_first_values(const at::Tensor& part, std::int64_t begin, const model::Parameter& parameter,
                       std::uint64_t seed);

}  // namespace shardtune::train
