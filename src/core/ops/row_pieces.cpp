#include "shardtune/core/row_pieces.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "elements.h"
#include "logit_rows.h"
#include "shardtune/core/error.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

/// Of one row: this piece's exponentials over the new maximum.
struct PieceRow {
  [[gnu::always_inline]] static inline void run(float* row, std::int64_t classes, float most, double* sum) {
    for (std::int64_t c = 0; c < classes; ++c) row[c] = simd::exp(row[c] - most);
    *sum = sum_fp64(row, classes);
  }
};

struct MaximumOfRow {
  [[gnu::always_inline]] static inline void run(const float* row, std::int64_t classes, float* most) {
    *most = maximum(row, classes);
  }
};

/// What one row's classes change; `target` counts from the piece's first class and may lie outside.
struct RowState {
  float *maximum, *target_logit, *factor;
  double* sum;

  void add(float* row, std::int64_t classes, std::int64_t target) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const bool has_target = target >= 0 && target < classes;
    if (has_target) {
      *target_logit = row[target];
      row[target] = kNone;
    }
    float most = kNone;
    simd::run<MaximumOfRow>(static_cast<const float*>(row), classes, &most);
    most = std::max(*maximum, most);
    // Nothing but the target so far: there is no maximum to subtract.
    const float subtracted = most == kNone ? 0 : most;
    double sum_here = 0;
    simd::run<PieceRow>(row, classes, subtracted, &sum_here);
    *factor = *maximum == kNone ? 0 : simd::exp(*maximum - most);
    *sum = *sum * static_cast<double>(*factor) + sum_here;
    *maximum = most;
  }
};

}  // namespace

void take_rows_of_piece(at::Tensor& to, const at::Tensor& piece, const at::Tensor& ids, std::int64_t first) {
  if (to.is_meta()) return;
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const std::int64_t rows = piece.size(0), width = piece.size(1);
  const bool alike = to.scalar_type() == piece.scalar_type() && to.is_contiguous() && piece.is_contiguous();
  const auto bytes = static_cast<std::size_t>(width) * to.element_size();
  for (std::int64_t n = 0; n < to.size(0); ++n) {
    const std::int64_t row = id[n] - first;
    if (row < 0 || row >= rows) continue;
    if (alike)
      std::memcpy(static_cast<std::byte*>(to.mutable_data_ptr()) + static_cast<std::size_t>(n) * bytes,
                  static_cast<const std::byte*>(piece.const_data_ptr()) + static_cast<std::size_t>(row) * bytes, bytes);
    else to.select(0, n).copy_(piece.select(0, row));
  }
}

RunningSoftmax::RunningSoftmax(std::int64_t rows, const at::TensorOptions& options)
    : maximum(at::full({rows}, -std::numeric_limits<float>::infinity(), options.dtype(at::kFloat))),
      sum(at::zeros({rows}, options.dtype(at::kDouble))), target_logit(at::zeros({rows}, options.dtype(at::kFloat))) {}

RunningSoftmax RunningSoftmax::rows(std::int64_t first, std::int64_t count) const {
  RunningSoftmax part;
  part.maximum = maximum.narrow(0, first, count);
  part.sum = sum.narrow(0, first, count);
  part.target_logit = target_logit.narrow(0, first, count);
  return part;
}

at::Tensor add_classes(RunningSoftmax& softmax, at::Tensor& logits, const at::Tensor& targets, std::int64_t first) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  at::Tensor factors = at::empty({rows, 1}, softmax.maximum.options());
  tell_rows(logits, 3);
  if (logits.is_meta()) return factors;
  SHARDTUNE_CHECK(has_rows(logits), "logits must be contiguous fp32 or bf16");
  const auto* target = targets.const_data_ptr<std::int64_t>();
  auto *maxima = softmax.maximum.mutable_data_ptr<float>(),
       *of_targets = softmax.target_logit.mutable_data_ptr<float>(), *factor = factors.mutable_data_ptr<float>();
  auto* sums = softmax.sum.mutable_data_ptr<double>();
  with_element(logits.scalar_type(), [&](auto element) {
    auto* x = mutable_data(logits, element);
    at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> space(static_cast<std::size_t>(classes));
      for (std::int64_t n = begin; n < end; ++n) {
        float* row = fp32_row(x + n * classes, space.data(), classes);
        RowState{maxima + n, of_targets + n, factor + n, sums + n}.add(row, classes, target[n] - first);
        round_row(row, x + n * classes, classes);
      }
    });
  });
  return factors;
}

namespace {

/// Of one row, over its maximum m: the target's logit, and the sum of exp(logit - m) over all classes and the others than the
/// target.
struct RowEnd {
  double target = 0, all = 0, others = 0;

  RowEnd(float maximum, double sum, float target_logit) : others(sum) {
    const float over = sum > 0 || std::isnan(sum) ? maximum : 0;
    target = static_cast<double>(target_logit) - static_cast<double>(over);
    all = sum + std::exp(target);
  }
  /// log(all) - target without the loss of digits of a sum in which one part is nearly all.
  double loss() const {
    if (std::isinf(target)) return std::numeric_limits<double>::quiet_NaN();
    return target > 0 ? std::log1p(others * std::exp(-target)) : std::log(all) - target;
  }
};

/// Calls use(row number, RowEnd).
template <typename Use>
void for_each_end(const RunningSoftmax& softmax, Use use) {
  const auto *maximum = softmax.maximum.const_data_ptr<float>(), *target = softmax.target_logit.const_data_ptr<float>();
  const auto* sum = softmax.sum.const_data_ptr<double>();
  for (std::int64_t n = 0; n < softmax.sum.size(0); ++n) use(n, RowEnd(maximum[n], sum[n], target[n]));
}

}  // namespace

double loss_of(const RunningSoftmax& softmax, std::int64_t classes) {
  // The planner's value: of a model that knows nothing.
  if (softmax.sum.is_meta()) return static_cast<double>(softmax.sum.size(0)) * std::log(static_cast<double>(classes));
  double total = 0;
  for_each_end(softmax, [&](std::int64_t, const RowEnd& row) { total += row.loss(); });
  return total;
}

at::Tensor input_gradient(const RunningSoftmax& softmax, at::Tensor& weighted, const at::Tensor& target_rows,
                          double scale, at::ScalarType type) {
  const std::int64_t rows = weighted.size(0);
  at::Tensor factors = at::empty({rows, 1}, weighted.options()), others = at::empty_like(factors);
  tell_rows(weighted, 3);
  if (!weighted.is_meta())
    for_each_end(softmax, [&](std::int64_t n, const RowEnd& row) {
      factors.mutable_data_ptr<float>()[n] = static_cast<float>(scale / row.all);
      others.mutable_data_ptr<float>()[n] = static_cast<float>(row.others);
    });
  weighted.addcmul_(target_rows.to(at::kFloat), others, -1).mul_(factors);
  return weighted.to(type);
}

}  // namespace shardtune::ops
