// Gradients of every parameter and of the LoRA matrices against Transformers + PEFT.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardtune/comm/self.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

class Gradients : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Gradients, EveryParameterOfTheMaskedBatch) {
  const auto [name, recompute] = GetParam();
  const auto folder = data_folder() / "numerics" / name;
  auto batches = read_tensors(folder / "batches.safetensors");
  const auto expected = read_tensors(folder / "grads_fp32.safetensors");
  Scratch scratch;
  write_rows(scratch / "rows.jsonl", batches["train.input_ids"][0], batches["train.labels"][0]);
  options::RunOptions options = plain_options(data_folder() / "models" / name, scratch / "rows.jsonl");
  options.adapter.use_peft_lora = false;
  options.model.activation_policy = recompute ? "recompute" : "keep";
  options.train.per_device_train_batch_size = 2;
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  run_steps(*run, 0, 1);
  const auto found = full_gradients(*run);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [parameter, gradient] : expected) {
    ASSERT_TRUE(found.contains(parameter)) << parameter;
    EXPECT_LE(relative_l2(found.at(parameter), gradient), 1e-5) << parameter;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Gradients,
                         ::testing::Combine(::testing::Values("tiny", "tiny-llama3", "tiny-odd"), ::testing::Bool()));

/// Pieces of rows in which embedding and head are used.
class LoraGradients : public ::testing::TestWithParam<int> {};

TEST_P(LoraGradients, MatricesOfTheFirstStep) {
  const auto folder = data_folder() / "numerics/tiny";
  auto batches = read_tensors(folder / "batches.safetensors");
  const auto expected = read_tensors(folder / "lora/grads_step1.safetensors");
  Scratch scratch;
  write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}), batches["train.labels"].view({80, 48}));
  make_adapter_folder(scratch / "start", folder / "lora/start.safetensors",
                      folder / "lora/adapter/adapter_config.json");
  options::RunOptions options = plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl");
  options.adapter.adapter_name_or_path = (scratch / "start").string();
  options.model.table_pieces = GetParam();
  options.train.per_device_train_batch_size = 2;
  options.train.gradient_accumulation_steps = 2;
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  run_steps(*run, 0, 1);
  const auto found = full_gradients(*run);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [parameter, gradient] : expected) {
    const std::string name = parameter.substr(std::string("base_model.model.").size());
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_LE(relative_l2(found.at(name), gradient), 1e-5) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Pieces, LoraGradients, ::testing::Values(1, 3, 7));

}  // namespace
}  // namespace shardtune::testing
