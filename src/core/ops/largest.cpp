#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>

#include "elements.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "tell.h"

namespace shardtune::ops {
namespace {

/// The largest element of a row and the first place that has it.
struct LargestInRow {
  template <typename T>
  [[gnu::always_inline]] static inline void run(const T* row, std::int64_t n, float* most, std::int64_t* place) {
    simd::Floats lanes = {}, next = {};
    for (int lane = 0; lane < simd::kLanes; ++lane) lanes[lane] = -std::numeric_limits<float>::infinity();
    std::int64_t i = 0;
    for (; i + simd::kLanes <= n; i += simd::kLanes) {
      for (int lane = 0; lane < simd::kLanes; ++lane) next[lane] = simd::widen(row[i + lane]);
      lanes = next > lanes ? next : lanes;
    }
    *most = lanes[0];
    for (int lane = 1; lane < simd::kLanes; ++lane) *most = lanes[lane] > *most ? lanes[lane] : *most;
    for (; i < n; ++i) *most = simd::widen(row[i]) > *most ? simd::widen(row[i]) : *most;
    for (*place = 0; *place < n - 1 && simd::widen(row[*place]) != *most;) ++*place;
  }
};

}  // namespace

void add_largest(Largest& largest, const at::Tensor& logits, std::int64_t first_class) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  tell_rows(logits, 1);
  if (largest.classes.empty()) {
    largest.logits.assign(static_cast<std::size_t>(rows), -std::numeric_limits<float>::infinity());
    largest.classes.assign(static_cast<std::size_t>(rows), 0);
  }
  if (logits.is_meta()) return;
  SHARDTUNE_CHECK(has_rows(logits), "logits must be contiguous fp32 or bf16");
  SHARDTUNE_CHECK(largest.classes.size() == static_cast<std::size_t>(rows), "{} rows were seen before, {} are here",
                  largest.classes.size(), rows);
  with_element(logits.scalar_type(), [&](auto element) {
    const auto* x = data(logits, element);
    at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        float most = 0;
        std::int64_t place = 0;
        simd::run<LargestInRow>(x + n * classes, classes, &most, &place);
        const auto row = static_cast<std::size_t>(n);
        if (!(most > largest.logits[row])) continue;
        largest.logits[row] = most;
        largest.classes[row] = first_class + place;
      }
    });
  });
}

}  // namespace shardtune::ops
