// What DoRA needs beside the low-rank path, against its definition in fp64.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "shardtune/core/dora.h"

namespace shardtune {
namespace {

at::Tensor draw(std::int64_t rows, std::int64_t columns, at::ScalarType type = at::kFloat) {
  return at::randn({rows, columns}, at::kFloat).to(type);
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

double largest(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

/// Both paths (up to rank 32 and above), sizes that blocks and lanes divide and do not.
TEST(MergedRowNorms, OfTheMergedMatrix) {
  at::manual_seed(3);
  struct Shape {
    std::int64_t out, in, rank;
  };
  for (const Shape& s : {Shape{1, 5, 1}, {7, 16, 4}, {40, 77, 3}, {33, 8, 32}, {300, 100, 33}, {257, 9, 64}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor w = draw(s.out, s.in, type), a = draw(s.rank, s.in), b = draw(s.out, s.rank);
      const at::Tensor exact = at::norm(wide(w) + 0.5 * at::mm(wide(b), wide(a)), 2, {1});
      const at::Tensor found = ops::merged_row_norms(w, {.a = a, .b = b, .scaling = 0.5});
      EXPECT_EQ(found.scalar_type(), at::kFloat);
      EXPECT_LE(largest(wide(found) / exact - 1), 1e-6) << s.out << " " << s.in << " " << s.rank;
    }
}

/// |W|^2 + 2 s <W, BA> + s^2 |BA|^2 would lose everything here: the sum is 1e-4 of its parts.
TEST(MergedRowNorms, WherePartsCancel) {
  at::manual_seed(4);
  const at::Tensor a = draw(4, 200), b = draw(30, 4);
  const at::Tensor rest = draw(30, 200) * 1e-4;
  const at::Tensor w = rest - at::mm(b, a);
  const at::Tensor exact = at::norm(wide(w) + at::mm(wide(b), wide(a)), 2, {1});
  EXPECT_LE(largest(wide(ops::merged_row_norms(w, {.a = a, .b = b})) / exact - 1), 1e-3);
}

TEST(MergedRowNorms, BitsDoNotDependOnThreads) {
  at::manual_seed(5);
  const at::Tensor w = draw(500, 70), a = draw(8, 70), b = draw(500, 8);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = ops::merged_row_norms(w, {.a = a, .b = b});
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(one, ops::merged_row_norms(w, {.a = a, .b = b})));
  at::set_num_threads(threads);
}

/// Both paths; bf16 is rounded once: within half a step of the exact sum, beside what fp32 sums miss.
TEST(Columns, ScaledWithALowRankProductAdded) {
  at::manual_seed(8);
  for (const std::int64_t rank : {3, 40})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = draw(300, 37, type), before = draw(300, 53, type), scale = draw(1, 53).flatten();
      const at::Tensor a = draw(rank, 37), b = draw(53, rank);
      at::Tensor y = before.clone();
      ops::scale_and_add_low_rank(y, scale, x, {.a = a, .b = b, .scaling = 0.5}, {});
      const at::Tensor exact = wide(before) * wide(scale) + 0.5 * at::mm(at::mm(wide(x), wide(a).t()), wide(b).t());
      const double half_a_step = type == at::kFloat ? 0 : 0x1p-8;
      EXPECT_LE(((wide(y) - exact).abs() - half_a_step * exact.abs()).max().item<double>(), 5e-5)
          << rank << " " << type;
    }
}

TEST(Columns, ScaledAddedAndSummed) {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [rows, columns] : {std::pair(1, 3), {9, 40}, {70, 1100}, {0, 8}}) {
      const at::Tensor x = draw(rows, columns, type), y = draw(rows, columns, type), scale = draw(1, columns).flatten();
      const double rounding = type == at::kFloat ? 2e-7 : type == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
      const double bound = rounding * 30;  // largest values are below 5 * 5
      at::Tensor in_place = x.clone(), sum = y.clone();
      ops::scale_columns(in_place, scale);
      ops::add_scaled_columns(sum, x, scale);
      EXPECT_TRUE(at::equal(ops::scaled_columns(x, scale), in_place));
      EXPECT_LE(largest(wide(in_place) - wide(x) * wide(scale)), bound);
      EXPECT_LE(largest(wide(sum) - (wide(y) + wide(x) * wide(scale))), bound);
      EXPECT_LE(largest(ops::column_dots(x, y) - at::sum(wide(x) * wide(y), {0})), 1e-12);
    }
}

}  // namespace
}  // namespace shardtune
