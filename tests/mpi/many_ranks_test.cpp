// Cases A17 and A18: more ranks than some tensors have rows.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/comm/self.h"
#include "shardtune/export/export.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

options::RunOptions small_rank_options(std::int64_t lora_r, comm::Communicator& communicator) {
  options::RunOptions options = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
  options.adapter.lora_r = lora_r;
  options.optim.learning_rate = 1e-2;
  // All six rows in one step for any number of ranks.
  options.train.gradient_accumulation_steps = (6 + communicator.size() - 1) / communicator.size();
  return options;
}

class CaseA18 : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(CaseA18, EmptyShardsTrainSaveResumeAndExport) {
  const std::int64_t lora_r = GetParam();
  const auto alone_communicator = comm::make_self_communicator();
  const auto alone = train::build_run(small_rank_options(lora_r, *alone_communicator), *alone_communicator);
  const auto expected = run_steps(*alone, 0, 3);

  SharedScratch scratch;
  const auto run = train::build_run(small_rank_options(lora_r, world()), world());
  ASSERT_EQ(run->steps_per_epoch, 1);
  const auto results = run_steps(*run, 0, 2);
  const auto folder =
      checkpoint::save(scratch.path(), {.step = 2, .optimizer_steps = 2}, *run->shards, *run->optimizer, world());
  const auto resumed = train::build_run(small_rank_options(lora_r, world()), world());
  checkpoint::load(folder, {}, *resumed->shards, *resumed->optimizer, world());
  const auto third = run_steps(*resumed, 2, 3)[0];
  EXPECT_EQ(results[0].loss, expected[0].loss);
  EXPECT_EQ(results[1].loss, expected[1].loss);
  EXPECT_EQ(third.loss, expected[2].loss);
  EXPECT_EQ(weights_hash(*resumed), weights_hash(*alone));

  exporting::write_adapter(scratch.path(), *resumed->lora, "base", *resumed->shards, world());
  const auto written = read_tensors(scratch / "adapter_model.safetensors");
  EXPECT_EQ(written.size(), 28u);
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.";
  EXPECT_EQ(written.at(module + "lora_A.weight").sizes().vec(), (std::vector<std::int64_t>{lora_r, 32}));
  EXPECT_EQ(written.at(module + "lora_B.weight").sizes().vec(), (std::vector<std::int64_t>{32, lora_r}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CaseA18, ::testing::Values(1, 4));

TEST(CaseA18Layout, SixElementsOnFourRanks) {
  const fsdp::ShardLayout layout({6}, 1, 4);
  std::vector<std::int64_t> held;
  for (int rank = 0; rank < 4; ++rank) {
    std::int64_t count = 0;
    for (const auto& range : layout.ranges(rank)) count += range.end - range.begin;
    held.push_back(count);
  }
  EXPECT_EQ(held, (std::vector<std::int64_t>{2, 2, 2, 0}));
}

TEST(CaseA17, EvaluationOnManyRanks) {
  SharedScratch scratch;
  on_rank_0([&] {
    for (const char* split : {"train.jsonl", "test.jsonl"})
      std::filesystem::copy_file(case_folder() / "rows-uneven.jsonl", scratch / split);
  });
  for (const int batch : {1, 4}) {
    options::RunOptions options = plain_options(case_folder() / "base-gqa", scratch.path());
    options.adapter.adapter_name_or_path = (case_folder() / "lora-start").string();
    options.train.eval_strategy = "epoch";
    options.train.per_device_eval_batch_size = batch;
    const auto result = train::evaluate(*train::build_run(options, world()));
    EXPECT_EQ(result.targets, 106);
    EXPECT_NEAR(result.loss, 6.83533, 2e-4);
  }
}

}  // namespace
}  // namespace shardtune::testing
