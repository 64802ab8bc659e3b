// Acceptance cases A12, A13, A15 and A20 over ranks; the numbers are those of the case files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shared_scratch.h"
#include "support/runs.h"
#include "train/banner.h"

namespace shardtune::testing {
namespace {

std::filesystem::path uneven() { return case_folder() / "rows-uneven.jsonl"; }

/// All six texts in one step: 106 targets, loss and norm of the file.
void expect_step_over_all_rows(const train::StepResult& result) {
  const auto expected = read_json(case_folder() / "rows-uneven-expected.json")["packed_all_rows_in_one_sequence"];
  EXPECT_EQ(result.targets, 106);
  EXPECT_EQ(result.tokens, 112);
  EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-4);
  const double norm = expected["grad_norm"];
  EXPECT_NEAR(result.grad_norm, norm, 1e-3 * norm);
}

/// What rank 0 prints about the run; "" on the others.
std::string banner_of(const train::Run& run) {
  if (world().rank() != 0) return "";
  ::testing::internal::CaptureStdout();
  train::print_banner(run, {});
  return ::testing::internal::GetCapturedStdout();
}

TEST(CaseA12A13, PackedRowsOverRanks) {
  for (const std::int64_t max_length : {52, 128}) {  // three rows and one
    options::RunOptions options = case_options(uneven());
    options.data.packing = true;
    options.data.max_length = max_length;
    options.train.gradient_accumulation_steps = 3;
    const auto run = train::build_run(options, world());
    ASSERT_EQ(run->train_rows.size(), max_length == 52 ? 3u : 1u);
    ASSERT_EQ(run->steps_per_epoch, 1);
    expect_step_over_all_rows(run_steps(*run, 0, 1)[0]);
  }
}

TEST(CaseA15, OneRowForAllRanks) {
  for (const char* sharding : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"}) {
    SCOPED_TRACE(sharding);
    options::RunOptions options = case_options(uneven());
    options.fsdp.sharding_strategy = sharding;
    options.data.packing = true;
    options.data.max_length = 128;
    options.train.num_train_epochs = 1;
    const auto run = train::build_run(options, world());
    ASSERT_EQ(run->train_rows.size(), 1u);
    ASSERT_EQ(run->total_steps, 1);
    const std::string banner = banner_of(*run);
    const auto result = run_steps(*run, 0, 1)[0];
    expect_step_over_all_rows(result);
    if (world().rank() != 0) continue;
    EXPECT_THAT(banner, ::testing::HasSubstr("training data: 1 row from 6 examples, 112 tokens; 106 targets"));
    const std::string warning = "warning: " + std::to_string(world().size() - 1) + " of " +
                                std::to_string(world().size()) +
                                (world().size() == 2 ? " ranks gets no training rows" : " ranks get no training rows");
    if (world().size() > 1) {
      EXPECT_THAT(banner, ::testing::HasSubstr(warning));
    } else {
      EXPECT_THAT(banner, ::testing::Not(::testing::HasSubstr("warning")));
    }
  }
}

TEST(CaseA15, EnoughRowsNoWarning) {
  const auto run = train::build_run(case_options(uneven()), world());  // six rows for at most four ranks
  EXPECT_THAT(banner_of(*run), ::testing::Not(::testing::HasSubstr("warning")));
}

TEST(CaseA20, EvaluationUsesNoDropout) {
  SharedScratch scratch;
  on_rank_0([&] {
    for (const char* split : {"train.jsonl", "test.jsonl"}) std::filesystem::copy_file(uneven(), scratch / split);
  });
  for (const bool packing : {false, true}) {
    options::RunOptions options = case_options(scratch.path());
    options.adapter.lora_dropout = 0.5;
    options.train.eval_strategy = "epoch";
    options.data.packing = packing;
    options.data.max_length = 128;
    const auto run = train::build_run(options, world());
    const auto result = train::evaluate(*run);
    EXPECT_EQ(result.targets, 106);
    EXPECT_NEAR(result.loss, 6.83533, 2e-4);
  }
}

}  // namespace
}  // namespace shardtune::testing
