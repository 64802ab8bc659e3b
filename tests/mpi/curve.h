#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardtune/train/train_step.h"
#include "support/runs.h"

namespace shardtune::testing {

/// Takes the 20 steps of a reference run (its run.json) on its batches and compares loss and gradient norm of each. Collective.
inline void expect_curve(train::Run& run, const nlohmann::json& reference) {
  for (std::int64_t step = 0; step < 20; ++step) {
    const train::StepResult result = train::train_step(run, reference_batches(run, step), step);
    const auto& expected = reference["steps"][static_cast<std::size_t>(step)];
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-5) << "step " << step + 1;
    const double norm = expected["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, 2e-5 * norm) << "step " << step + 1;
  }
}

}  // namespace shardtune::testing
