#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/quant/format.h"

namespace shardtune::adapters {

/// The weight [out, in] of `type` that `packed`, the bytes of its records, stands for: to be used and let go. Host memory, or
/// shapes alone.
at::Tensor dequantised(const at::Tensor& packed, const quant::Format& format, std::int64_t out, std::int64_t in,
                       at::ScalarType type);

}  // namespace shardtune::adapters
