#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "elements.h"
#include "logit_rows.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

/// One row of logits: leaves its exponentials over the maximum, gives their sum and the target's logit over the maximum.
struct ExponentialRow {
  [[gnu::always_inline]] static inline void run(float* row, std::int64_t classes, std::int64_t target, double* sum,
                                                double* at_target) {
    const float most = maximum(row, classes);
    *at_target = static_cast<double>(row[target] - most);
    for (std::int64_t c = 0; c < classes; ++c) row[c] = simd::exp(row[c] - most);
    *sum = sum_fp64(row, classes);
  }
};

struct ScaleRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const float* row, T* to, std::int64_t classes, float factor) {
    for (std::int64_t c = 0; c < classes; ++c) to[c] = simd::rounded<T>(row[c] * factor);
  }
};

/// The loss of one row of logits, which `space` [classes] serves unless they are fp32; leaves the gradient when wanted.
template <typename T>
double row_loss(T* logits, float* space, std::int64_t classes, std::int64_t target, double scale, bool want_gradient) {
  float* row = fp32_row(logits, space, classes);
  double sum = 0, at_target = 0;
  simd::run<ExponentialRow>(row, classes, target, &sum, &at_target);
  if (want_gradient) {
    const auto factor = static_cast<float>(scale / sum);
    const float of_target = row[target] * factor - static_cast<float>(scale);
    simd::run<ScaleRow>(static_cast<const float*>(row), logits, classes, factor);
    logits[target] = simd::rounded<T>(of_target);
  }
  return std::log(sum) - at_target;
}

}  // namespace

double cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, double scale, bool want_gradient) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  tell_rows(logits, want_gradient ? 3 : 1);
  // The planner's value: of a model that knows nothing.
  if (logits.is_meta()) return static_cast<double>(rows) * std::log(static_cast<double>(classes));
  SHARDTUNE_CHECK(has_rows(logits), "logits must be contiguous fp32 or bf16");
  const auto* target = targets.const_data_ptr<std::int64_t>();
  std::vector<double> losses(static_cast<std::size_t>(rows));
  with_element(logits.scalar_type(), [&](auto element) {
    auto* x = mutable_data(logits, element);
    at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> space(static_cast<std::size_t>(logits.scalar_type() == at::kFloat ? 0 : classes));
      for (std::int64_t n = begin; n < end; ++n)
        losses[static_cast<std::size_t>(n)] =
            row_loss(x + n * classes, space.data(), classes, target[n], scale, want_gradient);
    });
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total;
}

}  // namespace shardtune::ops
