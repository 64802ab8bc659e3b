// Chunks of tokens in the feed-forward half change rounding only; what is kept does not change even that.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardtune/comm/self.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

struct Found {
  train::StepResult step;
  std::map<std::string, at::Tensor> gradients;
};

/// Two rows of 48 tokens as one micro-batch, dropout on for LoRA.
Found step_with(bool lora, std::int64_t chunk, const std::string& activations) {
  const auto folder = data_folder() / "numerics/tiny";
  auto batches = read_tensors(folder / "batches.safetensors");
  Scratch scratch;
  write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}), batches["train.labels"].view({80, 48}));
  options::RunOptions options = plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl");
  if (lora) {
    make_adapter_folder(scratch / "start", folder / "lora/start.safetensors",
                        folder / "lora/adapter/adapter_config.json");
    options.adapter.adapter_name_or_path = (scratch / "start").string();
    options.adapter.lora_dropout = 0.2;
  }
  options.adapter.use_peft_lora = lora;
  options.train.per_device_train_batch_size = 2;
  options.model.ffn_chunk_tokens = chunk;
  options.model.activation_policy = activations;
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  Found found{run_steps(*run, 0, 1)[0], {}};
  found.gradients = full_gradients(*run);
  return found;
}

class FfnChunks : public ::testing::TestWithParam<bool> {};

TEST_P(FfnChunks, ChangeRoundingOnly) {
  const Found whole = step_with(GetParam(), 1 << 20, "keep");
  for (const std::int64_t chunk : {1, 7, 48, 95, 96}) {
    const Found kept = step_with(GetParam(), chunk, "keep"), again = step_with(GetParam(), chunk, "recompute");
    EXPECT_NEAR(kept.step.loss, whole.step.loss, 1e-6 * whole.step.loss) << chunk;
    EXPECT_EQ(again.step.loss, kept.step.loss) << chunk;
    for (const auto& [name, gradient] : whole.gradients) {
      EXPECT_LE(relative_l2(kept.gradients.at(name), gradient), 1e-5) << name << " chunk " << chunk;
      EXPECT_TRUE(at::equal(again.gradients.at(name), kept.gradients.at(name))) << name << " chunk " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FfnChunks, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "lora" : "full"; });

}  // namespace
}  // namespace shardtune::testing
