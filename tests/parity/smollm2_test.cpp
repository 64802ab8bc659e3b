// SmolLM2-135M-Instruct on our own conversations against Transformers + PEFT with an fp64 log-sum-exp. Needs the model folder in
// SHARDTUNE_DEMO_MODEL (tools/setup.sh makes it) and fails without it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "shardtune/adapters/peft_folder.h"
#include "shardtune/comm/self.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/train/generate.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

std::filesystem::path demo_model() {
  const char* folder = std::getenv("SHARDTUNE_DEMO_MODEL");
  if (folder == nullptr || !std::filesystem::exists(std::filesystem::path(folder) / "config.json"))
    throw std::runtime_error("SHARDTUNE_DEMO_MODEL does not name the demo model: run tools/run_tests.sh");
  return folder;
}

std::uint64_t name_seed(const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  return hash;
}

/// The reference scripts' start values: splitmix64, top 24 bits, in [-bound, bound).
at::Tensor uniform(std::uint64_t seed, std::vector<std::int64_t> shape, double bound) {
  at::Tensor out = at::empty(shape, at::kFloat);
  auto* values = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    std::uint64_t z = seed + static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    values[i] = static_cast<float>((static_cast<double>(z >> 40) / 8388608.0 - 1.0) * bound);
  }
  return out;
}

void set_start_values(train::Run& run) {
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit)
    run.shards->trained(unit).for_each_range(
        [&](std::size_t slot, std::int64_t begin, std::int64_t end, at::Tensor part) {
          const model::Parameter& parameter = run.shards->spec(unit).parameters[slot];
          if (parameter.initial != model::Initial::kLoraA) return;
          const at::Tensor full = uniform(name_seed(adapters::peft_name(parameter.name)), parameter.shape,
                                          1.0 / std::sqrt(static_cast<double>(parameter.shape[1])));
          part.copy_(full.view({-1}).narrow(0, begin, end - begin));
        });
}

std::unique_ptr<train::Run> build(const Scratch& scratch, comm::Communicator& communicator, const char* dtype,
                                  const quant::QuantOptions& quant = {}) {
  const at::Tensor ids = read_tensors(data_folder() / "smollm2/own_rows.safetensors")["input_ids"].to(at::kLong);
  write_rows(scratch / "rows.jsonl", ids, ids);
  options::RunOptions options = plain_options(demo_model(), scratch / "rows.jsonl");
  options.model.dtype = dtype;
  options.quant = quant;
  options.train.per_device_train_batch_size = 2;
  options.train.max_steps = 5;
  options.optim.learning_rate = 1e-4;
  options.optim.lr_scheduler_type = "cosine";
  options.optim.weight_decay = 1e-4;
  return train::build_run(options, communicator);
}

void expect_row_losses(const char* dtype, const nlohmann::json& expected, double bound) {
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  const auto run = build(scratch, *communicator, dtype);
  for (std::size_t row = 0; row < expected.size(); ++row) {
    const auto batch = data::collate(run->train_rows, {static_cast<std::int64_t>(row)});
    ASSERT_EQ(batch.target_count, 255);
    EXPECT_NEAR(run->engine->evaluate(batch) / 255, expected[row].get<double>(), bound) << "row " << row;
  }
}

TEST(SmolLM2, BaseLossesFp32) {
  expect_row_losses("float32", read_json(data_folder() / "smollm2/own_loss.json")["base_loss"]["fp32"], 1e-5);
}

TEST(SmolLM2, BaseLossesBf16) {
  expect_row_losses("bfloat16", read_json(data_folder() / "smollm2/own_loss.json")["base_loss"]["bf16"], 1e-2);
}

TEST(SmolLM2, LossAndAccuracyOfEvaluation) {
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  const at::Tensor ids = read_tensors(data_folder() / "smollm2/own_rows.safetensors")["input_ids"].to(at::kLong);
  write_rows(scratch / "rows.jsonl", ids, ids);
  options::RunOptions options = plain_options(demo_model(), scratch / "rows.jsonl");
  options.adapter = {};
  const auto run = train::build_run(options, *communicator, {}, {.kind = train::RunKind::kEvaluation});
  const auto expected = read_json(data_folder() / "generate/smollm2.json")["evaluate"];
  std::int64_t correct = 0;
  for (std::size_t row = 0; row < expected.size(); ++row) {
    const auto result = run->engine->evaluate_tokens(data::collate(run->eval_rows, {static_cast<std::int64_t>(row)}));
    EXPECT_NEAR(result.loss_sum / 255, expected[row]["loss"].get<double>(), 1e-5) << "row " << row;
    EXPECT_EQ(result.correct, expected[row]["correct"].get<std::int64_t>()) << "row " << row;
    correct += result.correct;
  }
  EXPECT_EQ(train::evaluate(*run).correct, correct);
}

/// Ten prompts, 40 tokens each; the smallest gap between the two largest logits on the way is 1e-3.
TEST(SmolLM2, GreedyTokensOfTransformers) {
  const auto communicator = comm::make_self_communicator();
  options::RunOptions options = plain_options(demo_model(), "");
  options.adapter = {};
  options.generate.max_new_tokens = 40;
  const auto run = train::build_run(options, *communicator, {}, {.kind = train::RunKind::kGeneration});
  const auto prompts = read_json(data_folder() / "generate/smollm2.json")["prompts"];
  std::vector<train::Request> requests;
  for (const auto& prompt : prompts) requests.push_back({.ids = prompt["ids"], .ends = {2}});
  ASSERT_EQ(requests.size(), 10u);
  train::generate(*run, requests, [&](std::size_t i, const train::Continuation& continuation) {
    EXPECT_EQ(continuation.ids, prompts[i]["tokens"].get<std::vector<std::int32_t>>()) << "prompt " << i;
  });
}

void expect_five_steps(const quant::QuantOptions& quant, const nlohmann::json& expected) {
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  const auto run = build(scratch, *communicator, "float32", quant);
  set_start_values(*run);
  const auto results = run_steps(*run, 0, 5);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(results[i].loss, expected[i]["loss"].get<double>(), 2e-5) << "step " << i + 1;
    const double norm = expected[i]["grad_norm"];
    EXPECT_NEAR(results[i].grad_norm, norm, 2e-4 * norm) << "step " << i + 1;
    EXPECT_NEAR(results[i].learning_rate, expected[i]["lr"].get<double>(), 1e-15) << "step " << i + 1;
  }
}

TEST(SmolLM2, FiveLoraSteps) {
  expect_five_steps({}, read_json(data_folder() / "smollm2/own_loss.json")["curve_fp64"]);
}

TEST(SmolLM2, FiveQloraSteps) {
  expect_five_steps({.use_4bit_quantization = true, .use_nested_quant = true},
                    read_json(data_folder() / "smollm2/own_qlora_loss.json")["curve_fp64"]);
}

}  // namespace
}  // namespace shardtune::testing
