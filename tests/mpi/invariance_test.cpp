// The same numbers for any split: 20 steps with dropout on all ranks of the job against one rank alone. The global batch is 12
// micro-batches of one row, which 1, 2, 3 and 4 ranks share evenly.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>

#include "shardtune/comm/self.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

struct Trace {
  std::vector<train::StepResult> steps;
  std::string hash;
};

struct Variant {
  const char* name;
  const char* model;
  bool lora = true, recompute = true;
  double dropout = 0.1;
};

Trace trace(const Variant& variant, const std::filesystem::path& rows, comm::Communicator& communicator,
            std::uint64_t seed = 42) {
  options::RunOptions options = plain_options(data_folder() / "models" / variant.model, rows);
  options.adapter.use_peft_lora = variant.lora;
  options.adapter.lora_dropout = variant.dropout;
  options.model.activation_policy = variant.recompute ? "recompute" : "keep";
  options.data.shuffle = true;
  options.data.seed = seed;
  options.optim.learning_rate = variant.lora ? 5e-3 : 1e-3;
  options.optim.weight_decay = 1e-4;
  options.train.gradient_accumulation_steps = 12 / communicator.size();
  options.train.max_steps = 20;
  const auto run = train::build_run(options, communicator);
  Trace out{.steps = run_steps(*run, 0, 20), .hash = {}};
  out.hash = weights_hash(*run);
  return out;
}

void make_rows(const SharedScratch& scratch, const char* model) {
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics" / model / "batches.safetensors");
    write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}),
               batches["train.labels"].view({80, 48}));
  });
}

class Invariance : public ::testing::TestWithParam<Variant> {};

TEST_P(Invariance, TwentyStepsEqualOneRankAlone) {
  const Variant variant = GetParam();
  SharedScratch scratch;
  make_rows(scratch, variant.model);
  const Trace together = trace(variant, scratch / "rows.jsonl", world());
  const Trace alone = trace(variant, scratch / "rows.jsonl", *comm::make_self_communicator());
  for (std::size_t i = 0; i < 20; ++i) {
    // The raw 64 bits of the loss; the norm's last bits depend on where the shards are cut.
    EXPECT_EQ(std::bit_cast<std::uint64_t>(together.steps[i].loss), std::bit_cast<std::uint64_t>(alone.steps[i].loss))
        << "step " << i + 1;
    EXPECT_NEAR(together.steps[i].grad_norm, alone.steps[i].grad_norm, 5e-6 * alone.steps[i].grad_norm)
        << "step " << i + 1;
  }
  EXPECT_EQ(together.hash, alone.hash);
}

INSTANTIATE_TEST_SUITE_P(Variants, Invariance,
                         ::testing::Values(Variant{"lora", "tiny"}, Variant{"lora_tied", "tiny-llama3"},
                                           Variant{"lora_odd", "tiny-odd"},
                                           Variant{"lora_keep_all", "tiny", true, false},
                                           Variant{"full_tied", "tiny-llama3", false, true, 0.0}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Invariance, AnotherSeedChangesTheCurve) {
  SharedScratch scratch;
  make_rows(scratch, "tiny");
  const Variant variant{"lora", "tiny"};
  EXPECT_NE(trace(variant, scratch / "rows.jsonl", world(), 1).hash,
            trace(variant, scratch / "rows.jsonl", world(), 2).hash);
}

}  // namespace
}  // namespace shardtune::testing
