#include "shardtune/core/low_rank.h"

#include <ATen/ATen.h>

#include "low_rank_paths.h"
#include "low_rank_twin.h"
#include "shardtune/core/shape_only.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

/// Up to here the loops are as fast as the library's products or faster.
constexpr std::int64_t kLoopRank = 32;

at::Tensor fp32(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

low_rank::Factors prepared(const LowRank& factors, const DropoutKey& key) {
  return {fp32(factors.a), fp32(factors.b.t()), static_cast<float>(factors.scaling), key};
}

/// fp32 and bf16 as they are, anything else in fp32. The tensors of one linear share it.
at::ScalarType row_type(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat; }

}  // namespace

namespace {

void add(at::Tensor& y, const at::Tensor& x, const low_rank::Factors& factors) {
  const at::ScalarType type = row_type(x);
  at::Tensor output = y.to(type).contiguous();
  const auto way = factors.a.size(0) <= kLoopRank ? low_rank::add_by_loops : low_rank::add_by_products;
  way(output, x.to(type).contiguous(), factors);
  if (!output.is_same(y)) y.copy_(output);
}

void tell(const at::Tensor& y, const at::Tensor& x, const LowRank& factors) {
  tell_matmul(x.scalar_type(), x.size(0), x.size(1), factors.a.size(0));
  tell_matmul(x.scalar_type(), x.size(0), factors.a.size(0), y.size(1));
}

}  // namespace

void add_low_rank(at::Tensor& y, const at::Tensor& x, const LowRank& factors, const DropoutKey& key) {
  tell(y, x, factors);
  if (!goes_cpu_way(x)) return low_rank::add_twin(y, x, factors, key);
  add(y, x, prepared(factors, key));
}

void scale_and_add_low_rank(at::Tensor& y, const at::Tensor& scale, const at::Tensor& x, const LowRank& factors,
                            const DropoutKey& key) {
  tell(y, x, factors);
  tell_rows(y, 2);
  if (!goes_cpu_way(x)) return low_rank::add_twin(y, x, factors, key);
  low_rank::Factors both = prepared(factors, key);
  const at::Tensor row = scale.contiguous();
  if (!row.is_meta()) both.y_scale = row.const_data_ptr<float>();
  add(y, x, both);
}

void low_rank_backward(const at::Tensor& x, const at::Tensor& gradient, const LowRank& factors, const DropoutKey& key,
                       at::Tensor& x_gradient, at::Tensor* a_gradient, at::Tensor* b_gradient) {
  const std::int64_t rows = x.size(0), in = x.size(1), out = gradient.size(1), rank = factors.a.size(0);
  for (const std::int64_t width : {in, out}) {  // the reduced rows, the gradient of a factor, and what goes on
    tell_matmul(x.scalar_type(), rows, width, rank);
    tell_matmul(x.scalar_type(), rank, rows, width);
  }
  tell_matmul(x.scalar_type(), rows, rank, in);
  if (!goes_cpu_way(x)) return low_rank::backward_twin(x, factors, key);
  const at::ScalarType type = row_type(x);
  at::Tensor output = x_gradient.to(type).contiguous();
  const auto backward = factors.a.size(0) <= kLoopRank ? low_rank::backward_by_loops : low_rank::backward_by_products;
  backward(x.to(type).contiguous(), gradient.to(type).contiguous(), prepared(factors, key), output, a_gradient,
           b_gradient);
  if (!output.is_same(x_gradient)) x_gradient.copy_(output);
}

}  // namespace shardtune::ops
