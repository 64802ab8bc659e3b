#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::ops {
namespace {

double sum_fp64(const float* x, std::int64_t n) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(x[i + lane]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < n; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

}  // namespace

double cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, double scale, bool want_gradient) {
  SHARDTUNE_CHECK(logits.scalar_type() == at::kFloat && logits.is_contiguous(), "logits must be contiguous fp32");
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const at::Tensor maximum = at::amax(logits, {1}, /*keepdim=*/true);
  logits.sub_(maximum);
  const at::Tensor at_target = at::gather(logits, 1, targets.unsqueeze(1)).contiguous();
  logits.exp_();
  auto* x = logits.mutable_data_ptr<float>();
  const auto* chosen = at_target.const_data_ptr<float>();
  const auto* target = targets.const_data_ptr<std::int64_t>();
  std::vector<double> losses(static_cast<std::size_t>(rows));
  at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      float* row = x + n * classes;
      const double sum = sum_fp64(row, classes);
      losses[static_cast<std::size_t>(n)] = std::log(sum) - static_cast<double>(chosen[n]);
      if (!want_gradient) continue;
      const auto factor = static_cast<float>(scale / sum);
      for (std::int64_t c = 0; c < classes; ++c) row[c] *= factor;
      row[target[n]] -= static_cast<float>(scale);
    }
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total;
}

}  // namespace shardtune::ops
