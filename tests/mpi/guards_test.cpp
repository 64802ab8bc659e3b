// What is not finite is neither saved nor told as a result.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "shardtune/comm/agree.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Message and class of the error that all ranks must get from `action`.
template <typename F>
void expect_non_finite(F action, const std::string& fragment) {
  try {
    action();
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kNonFinite);
    EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "no error";
}

TEST(Guards, OneRanksWeightOfNan) {
  const auto run = train::build_run(case_options(case_folder() / "rows-uneven.jsonl"), world());
  EXPECT_NO_THROW(train::check_weights_finite(*run));
  // The last rank alone has it, in the last element of its part of a layer.
  if (world().rank() == world().size() - 1) run->shards->trained(2).local()[-1] = kNan;
  expect_non_finite([&] { train::check_weights_finite(*run); }, "trained weights of layer 1 are not finite");
}

TEST(Guards, EvaluationLossOfNan) {
  SharedScratch scratch;
  on_rank_0([&] {
    for (const char* split : {"train.jsonl", "test.jsonl"})
      std::filesystem::copy_file(case_folder() / "rows-uneven.jsonl", scratch / split);
  });
  options::RunOptions options = case_options(scratch.path());
  options.train.eval_strategy = "epoch";
  const auto run = train::build_run(options, world());
  run->shards->trained(1).local().fill_(kNan);
  expect_non_finite([&] { train::evaluate(*run); }, "the evaluation loss is nan");
}

TEST(Guards, StepStopsBeforeTheWeightsChange) {
  const auto run = train::build_run(case_options(case_folder() / "rows-uneven.jsonl"), world());
  run->shards->trained(1).local().fill_(kNan);
  const std::string before = weights_hash(*run);
  expect_non_finite([&] { run_steps(*run, 0, 1); }, "the loss of step 1 is nan");
  EXPECT_EQ(weights_hash(*run), before);
  EXPECT_EQ(run->optimizer->steps_taken(), 0);
}

}  // namespace
}  // namespace shardtune::testing
