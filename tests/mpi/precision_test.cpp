// Types of computation, of transport and the loss scale of fp16.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>

#include "shardtune/export/export.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

/// 12 micro-batches of one row a step on the small model.
options::RunOptions options_for(bool lora, const std::filesystem::path& rows) {
  options::RunOptions options = plain_options(data_folder() / "models/tiny", rows);
  options.adapter.use_peft_lora = lora;
  options.adapter.lora_dropout = lora ? 0.1 : 0.0;
  options.optim.learning_rate = lora ? 5e-3 : 1e-3;
  options.train.gradient_accumulation_steps = 12 / world().size();
  options.train.max_steps = 6;
  return options;
}

class Precisions : public ::testing::TestWithParam<bool> {
 protected:
  Precisions() {
    on_rank_0([&] {
      auto batches = read_tensors(data_folder() / "numerics/tiny/batches.safetensors");
      write_rows(scratch_ / "rows.jsonl", batches["train.input_ids"].view({80, 48}),
                 batches["train.labels"].view({80, 48}));
    });
  }
  std::vector<train::StepResult> steps_of(const std::string& dtype, const std::string& mixed,
                                          const std::string& reduce = "float32") {
    options::RunOptions options = options_for(GetParam(), scratch_ / "rows.jsonl");
    options.model.dtype = dtype;
    options.model.mixed_precision = mixed;
    options.fsdp.reduce_dtype = reduce;
    const auto run = train::build_run(options, world());
    return run_steps(*run, 0, 6);
  }
  void expect_near(const std::vector<train::StepResult>& found, double bound) {
    const auto exact = steps_of("float32", "no");
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_FALSE(found[i].skipped);
      EXPECT_NEAR(found[i].loss, exact[i].loss, bound * exact[i].loss) << "step " << i + 1;
      EXPECT_NEAR(found[i].grad_norm, exact[i].grad_norm, 20 * bound * exact[i].grad_norm) << "step " << i + 1;
    }
  }

  SharedScratch scratch_;
};

/// Frozen weights are rounded once, when they are loaded, or each time they are read: the same. Trained ones have fp32
/// masters in both.
TEST_P(Precisions, MixedBf16IsBf16Computation) {
  const auto mixed = steps_of("float32", "bf16"), stored = steps_of("bfloat16", "no");
  for (std::size_t i = 0; i < mixed.size(); ++i)
    EXPECT_EQ(std::bit_cast<std::uint64_t>(mixed[i].loss), std::bit_cast<std::uint64_t>(stored[i].loss));
}

// Half precision rounds to 11 bits: 2^-11 = 5e-4 for one operation, and errors of a row's many operations average out.
TEST_P(Precisions, Fp16FollowsFp32) { expect_near(steps_of("float32", "fp16"), 1e-3); }

// The bound for bf16 on its way: 1e-2 (docs/design.md).
TEST_P(Precisions, Bf16ReductionFollowsFp32) { expect_near(steps_of("float32", "no", "bfloat16"), 1e-2); }

// Only the adapters are rounded, to 8 bits: the bound of bf16 again. Their masters stay fp32, so the export must round, too.
TEST(AdapterDtype, Bf16FollowsFp32AndIsWrittenAsSuch) {
  SharedScratch scratch;
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics/tiny/batches.safetensors");
    write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}),
               batches["train.labels"].view({80, 48}));
  });
  options::RunOptions options = options_for(true, scratch / "rows.jsonl");
  const auto exact = train::build_run(options, world());
  options.adapter.adapter_dtype = "bfloat16";
  const auto run = train::build_run(options, world());
  const auto expected = run_steps(*exact, 0, 6), found = run_steps(*run, 0, 6);
  // B begins at zero, which bf16 holds: the first step alone sees no rounding of it.
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i].loss, expected[i].loss, 1e-2 * expected[i].loss) << "step " << i + 1;
  EXPECT_NE(found.back().loss, expected.back().loss);
  exporting::write_adapter(scratch.path(), *run->lora, "base", *run->shards, world(), run->precision.trained);
  on_rank_0([&] {
    for (const auto& [name, tensor] : read_tensors(scratch / "adapter_model.safetensors"))
      EXPECT_EQ(tensor.scalar_type(), at::kBFloat16) << name;
  });
}

TEST_P(Precisions, TooLargeALossScaleSkipsTheStepAndShrinks) {
  options::RunOptions options = options_for(GetParam(), scratch_ / "rows.jsonl");
  options.model.mixed_precision = "fp16";
  const auto run = train::build_run(options, world());
  const double start = std::ldexp(1.0, 40);
  run->scaler.emplace(start);
  const std::string before = weights_hash(*run);
  const auto first = run_steps(*run, 0, 1)[0];
  EXPECT_TRUE(first.skipped);
  EXPECT_EQ(run->scaler->scale(), start / 2);
  EXPECT_EQ(weights_hash(*run), before);
  EXPECT_EQ(run->optimizer->steps_taken(), 0);
  std::int64_t step = 1;
  while (run_steps(*run, step, step + 1)[0].skipped) ASSERT_LT(++step, 40);
  EXPECT_EQ(run->optimizer->steps_taken(), 1);
  EXPECT_EQ(run->scaler->good_steps(), 1);
  EXPECT_NE(weights_hash(*run), before);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Precisions, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "lora" : "full"; });

TEST(LossScaler, GrowsAfter2000GoodSteps) {
  train::LossScaler scaler(1024, 1998);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1024);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 2048);
  EXPECT_EQ(scaler.good_steps(), 0);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1024);
}

}  // namespace
}  // namespace shardtune::testing
