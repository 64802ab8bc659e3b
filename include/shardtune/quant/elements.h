#pragma once
#include <cstdint>

#include "shardtune/core/dtype.h"

namespace shardtune::quant {

/// Values in fp32, bf16 or fp16, one after another in memory that the caller owns, aligned as its type needs.
struct ConstElements {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  std::int64_t count = 0;
};

/// Room for the same.
struct Elements {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  std::int64_t count = 0;
};

}  // namespace shardtune::quant
