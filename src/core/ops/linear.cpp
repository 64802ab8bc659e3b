#include <ATen/ATen.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "gemm.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/row_pieces.h"
#include "shardtune/core/shape_only.h"
#include "tell.h"

namespace shardtune::ops {

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool: return at::kBool;
    case Dtype::kU8: return at::kByte;
    case Dtype::kI8: return at::kChar;
    case Dtype::kI16: return at::kShort;
    case Dtype::kU16: return at::kUInt16;
    case Dtype::kI32: return at::kInt;
    case Dtype::kU32: return at::kUInt32;
    case Dtype::kI64: return at::kLong;
    case Dtype::kU64: return at::kUInt64;
    case Dtype::kF8E4M3: return at::kFloat8_e4m3fn;
    case Dtype::kF8E5M2: return at::kFloat8_e5m2;
    case Dtype::kF16: return at::kHalf;
    case Dtype::kBF16: return at::kBFloat16;
    case Dtype::kF32: return at::kFloat;
    case Dtype::kF64: return at::kDouble;
  }
  fail(ErrorClass::kInternal, "unknown dtype {}", static_cast<int>(dtype));
}

Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return Dtype::kF32;
    case at::kBFloat16: return Dtype::kBF16;
    case at::kHalf: return Dtype::kF16;
    case at::kDouble: return Dtype::kF64;
    case at::kByte: return Dtype::kU8;
    case at::kInt: return Dtype::kI32;
    case at::kLong: return Dtype::kI64;
    default: fail(ErrorClass::kInternal, "no file dtype for tensor type {}", at::toString(type));
  }
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  SHARDTUNE_CHECK(tensor.is_contiguous() && (tensor.is_cpu() || tensor.is_meta()),
                  "bytes of a tensor that is not plain host memory");
  if (tensor.is_meta()) return {static_cast<std::byte*>(nullptr), static_cast<std::size_t>(tensor.nbytes())};
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

bool has_fast_bf16() {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("avx512bf16");
#else
  static const bool fast = false;
#endif
  return fast;
}

bool has_fp16() {
#if defined(__x86_64__)
  // Not every compiler's __builtin_cpu_supports knows this feature.
  static const bool there = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
#else
  static const bool there = true;  // part of every 64-bit ARM
#endif
  return there;
}

namespace {

bool through_fp32(const at::Tensor& x) {
  return goes_cpu_way(x) && x.scalar_type() != at::kFloat && x.scalar_type() != at::kDouble &&
         !(x.scalar_type() == at::kBFloat16 && has_fast_bf16());
}

}  // namespace

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor sum;
  add_matmul(sum, a, b);
  return sum;
}

void add_matmul(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const bool add = sum.defined();
  tell_matmul(a.scalar_type(), a.size(0), a.size(1), b.size(1));
  if (!goes_cpu_way(a) || !(through_fp32(a) || a.scalar_type() == at::kFloat)) {
    if (!add) sum = at::empty({a.size(0), b.size(1)}, a.options());
    const LedgerScope scratch(Purpose::kOther);  // what the library takes for a moment depends on the processor
    if (add) sum.addmm_(a, b);
    else at::mm_out(sum, a, b);
    return;
  }
  const at::Tensor left = a.to(at::kFloat), right = b.to(at::kFloat);
  at::Tensor wide = add ? sum.to(at::kFloat) : at::empty({a.size(0), b.size(1)}, left.options());
  gemm_fp32(wide, left, right, add);
  if (!add) sum = wide.to(a.scalar_type());
  else if (!wide.is_same(sum)) sum.copy_(wide);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w) { return ops::matmul(x, w.t()); }

at::Tensor room_for_dequantised(const at::Tensor& packed, std::int64_t out, std::int64_t in, at::ScalarType type) {
  const LedgerScope scope(Purpose::kDequantised);
  at::Tensor dense = at::empty({out, in}, packed.options().dtype(type));
  tell_rows(dense, 1 + static_cast<double>(packed.nbytes()) / static_cast<double>(dense.nbytes()));
  return dense;
}

void add_product_fp32(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  tell_matmul(b.scalar_type(), a.size(0), b.size(0), b.size(1));
  // A kernel of the GPU multiplies bf16 and adds in fp32.
  if (!goes_cpu_way(b)) return;
  gemm_fp32(sum, a.to(at::kFloat), b.to(at::kFloat), /*add=*/true);
}

void add_weight_gradient(at::Tensor& sink, const at::Tensor& gradient, const at::Tensor& x) {
  add_product_fp32(sink, gradient.t(), x);
}

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids) { return take_rows(table, ids); }

at::Tensor take_rows(const at::Tensor& x, const at::Tensor& which) {
  if (x.is_meta()) return at::empty({which.size(0), x.size(1)}, x.options());
  return at::index_select(x, 0, which);
}

void put_rows(at::Tensor& x, const at::Tensor& which, const at::Tensor& rows) {
  if (!x.is_meta()) x.index_copy_(0, which, rows);
}

bool all_finite(const at::Tensor& x) {
  if (x.is_meta()) {
    // Magnitudes and verdicts, as isfinite makes them.
    const at::Tensor magnitudes = at::empty_like(x), verdicts = at::empty(x.sizes(), x.options().dtype(at::kBool));
    return true;
  }
  return at::isfinite(x).all().item<bool>();
}

void add_embedding_gradient(at::Tensor& sink, const at::Tensor& gradient, const at::Tensor& ids, std::int64_t padding) {
  // Row by row in token order: a repeated id always adds up in the same order.
  const at::Tensor g = gradient.to(at::kFloat).contiguous();
  tell_rows(g, 3);
  if (g.is_meta()) return;
  const auto* rows = ids.const_data_ptr<std::int64_t>();
  const auto* from = g.const_data_ptr<float>();
  auto* to = sink.mutable_data_ptr<float>();
  const std::int64_t width = g.size(1);
  for (std::int64_t n = 0; n < g.size(0); ++n) {
    if (rows[n] == padding) continue;
    for (std::int64_t d = 0; d < width; ++d) to[rows[n] * width + d] += from[n * width + d];
  }
}

}  // namespace shardtune::ops
