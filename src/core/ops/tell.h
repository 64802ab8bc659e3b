#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/core/ops.h"
#include "shardtune/core/work.h"

/// Tells the work listener, if one is there.
namespace shardtune::ops {

/// a [n, k] b [k, m].
inline void tell_matmul(at::ScalarType type, std::int64_t n, std::int64_t k, std::int64_t m) {
  if (work_listener() == nullptr) return;
  const auto rows = static_cast<double>(n), inner = static_cast<double>(k), columns = static_cast<double>(m);
  const auto width = static_cast<double>(at::elementSize(type));
  work_listener()->compute({.kind = ComputeKind::kMatmul,
                            .type = dtype_of(type),
                            .flops = 2 * rows * inner * columns,
                            .bytes = width * (rows * inner + inner * columns + rows * columns)});
}

/// Something bound by memory that reads and writes `passes` times the bytes of `x`.
inline void tell_rows(const at::Tensor& x, double passes) {
  if (work_listener() == nullptr) return;
  work_listener()->compute({.kind = ComputeKind::kRows,
                            .type = dtype_of(x.scalar_type()),
                            .flops = 0,
                            .bytes = passes * static_cast<double>(x.nbytes())});
}

}  // namespace shardtune::ops
