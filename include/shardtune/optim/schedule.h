#pragma once
#include <cstdint>

#include "shardtune/optim/options.h"

namespace shardtune::optim {

/// Warm-up steps as Transformers counts them: the number itself from 1 on, below 1 a share of all steps, rounded up.
std::int64_t warmup_step_count(double warmup_steps, std::int64_t total_steps);

/// The learning rate that optimizer step `step` (from 0) uses: a pure function, so it cannot run ahead with micro-batches or
/// ranks. With warm-up the first step uses 0. Same values as Transformers' scheduler factory.
double learning_rate_at(const OptimOptions& options, std::int64_t step, std::int64_t total_steps);

}  // namespace shardtune::optim
