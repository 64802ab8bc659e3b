#pragma once
#include <ATen/ATen.h>

namespace shardtune::model {

/// Puts some rows of a result into `whole`, which has `tokens` rows; rows that are everything are not copied.
inline void put_rows(at::Tensor& whole, std::int64_t tokens, std::int64_t first, at::Tensor rows) {
  if (rows.size(0) == tokens) {
    whole = std::move(rows);
    return;
  }
  if (!whole.defined()) whole = at::empty({tokens, rows.size(1)}, rows.options());
  whole.narrow(0, first, rows.size(0)).copy_(rows);
}

}  // namespace shardtune::model
