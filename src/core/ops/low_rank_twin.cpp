#include "low_rank_twin.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tell.h"

namespace shardtune::ops::low_rank {
namespace {

/// Rows that go through the adapter at a time.
constexpr std::int64_t kBlockRows = 2048;

/// The factors in the type of the rows, which tensor cores want.
struct Narrow {
  Narrow(const LowRank& factors, at::ScalarType type) : a(factors.a.to(type)), b(factors.b.to(type)) {}
  at::Tensor a, b;
};

template <typename F>
void for_each_block(std::int64_t rows, F visit) {
  for (std::int64_t first = 0; first < rows; first += kBlockRows) visit(first, std::min(kBlockRows, rows - first));
}

/// The masked rows, or the rows themselves when nothing is dropped.
at::Tensor dropped(const at::Tensor& x, const DropoutKey& key) {
  if (key.probability == 0) return x;
  tell_rows(x, 2);
  return at::empty_like(x);
}

}  // namespace

void add_twin(at::Tensor& y, const at::Tensor& x, const LowRank& factors, const DropoutKey& key) {
  const Narrow narrow(factors, x.scalar_type());
  for_each_block(x.size(0), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor reduced = at::mm(dropped(x.narrow(0, first, count), key), narrow.a.t());
    y.narrow(0, first, count).addmm_(reduced, narrow.b.t());
  });
}

void backward_twin(const at::Tensor& x, const LowRank& factors, const DropoutKey& key) {
  const Narrow narrow(factors, x.scalar_type());
  for_each_block(x.size(0), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor rows = x.narrow(0, first, count);
    at::Tensor masked = dropped(rows, key);
    const at::Tensor reduced = at::mm(masked, narrow.a.t()), reduced_gradient = at::empty_like(reduced);
    // The product with A takes the place of the masked rows, which nobody needs any more, and is added where the mask is set.
    if (masked.is_same(rows)) masked = at::empty_like(rows);
    tell_rows(masked, 3);
  });
}

}  // namespace shardtune::ops::low_rank
