// Curves of 20 optimizer steps against transformers.Trainer + PEFT: loss, gradient norm, rate and token count of every step,
// and the trained weights.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

struct Curve {
  const char* model;
  const char* folder;
  double loss_bound, norm_bound;
  const char* dtype = "float32";
};

std::unique_ptr<train::Run> build(const Curve& curve, const nlohmann::json& settings, const Scratch& scratch,
                                  comm::Communicator& communicator) {
  write_training_rows(scratch / "rows.jsonl", curve.model);
  options::RunOptions options = plain_options(data_folder() / "models" / curve.model, scratch / "rows.jsonl");
  options.model.dtype = curve.dtype;
  options.train.per_device_train_batch_size = 2;
  options.train.gradient_accumulation_steps = 2;
  take_settings(options, settings);
  options.adapter.use_peft_lora = settings["kind"] != "full";
  if (options.adapter.use_peft_lora) {
    make_reference_start(scratch / "start", curve.model, curve.folder);
    options.adapter.adapter_name_or_path = (scratch / "start").string();
  }
  return train::build_run(options, communicator);
}

class Curves : public ::testing::TestWithParam<Curve> {};

TEST_P(Curves, TwentySteps) {
  const Curve curve = GetParam();
  const auto reference = read_json(data_folder() / "numerics" / curve.model / curve.folder / "run.json");
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  const auto run = build(curve, reference["settings"], scratch, *communicator);
  const auto results = run_steps(*run, 0, 20);
  for (std::size_t i = 0; i < 20; ++i) {
    const auto& expected = reference["steps"][i];
    EXPECT_NEAR(results[i].loss, expected["loss"].get<double>(), curve.loss_bound) << "step " << i + 1;
    const double norm = expected["grad_norm"];
    EXPECT_NEAR(results[i].grad_norm, norm, curve.norm_bound * norm) << "step " << i + 1;
    EXPECT_NEAR(results[i].learning_rate, expected["lr"].get<double>(), 1e-15) << "step " << i + 1;
    EXPECT_EQ(results[i].targets, static_cast<std::int64_t>(expected["tokens"].get<double>())) << "step " << i + 1;
  }
}

std::string curve_name(const ::testing::TestParamInfo<Curve>& info) {
  std::string name = std::string(info.param.model) + "_" + info.param.folder;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Reference, Curves,
                         ::testing::Values(Curve{"tiny", "lora", 2e-5, 2e-5}, Curve{"tiny", "lora_warmup", 2e-5, 2e-5},
                                           Curve{"tiny", "rslora", 2e-5, 2e-5}, Curve{"tiny", "full", 2e-5, 2e-5},
                                           Curve{"tiny-llama3", "lora", 2e-5, 2e-5},
                                           Curve{"tiny-llama3", "full", 2e-5, 2e-5},
                                           Curve{"tiny-odd", "lora", 2e-5, 2e-5}, Curve{"tiny-odd", "full", 2e-5, 2e-5},
                                           Curve{"tiny", "lora_bf16", 1e-2, 1e-2, "bfloat16"}),
                         curve_name);

TEST(Curves, TrainedAdapterAndItsLogits) {
  const auto folder = data_folder() / "numerics/tiny/lora";
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  const auto run = build({"tiny", "lora", 0, 0}, read_json(folder / "run.json")["settings"], scratch, *communicator);
  run_steps(*run, 0, 20);
  const auto weights = full_weights(*run);
  const auto expected = read_tensors(folder / "adapter/adapter_model.safetensors");
  ASSERT_EQ(weights.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_LE(relative_l2(weights.at(name.substr(17)), tensor), 5e-4) << name;
}

TEST(Curves, ReferenceAdapterGivesItsLogits) {
  const auto folder = data_folder() / "numerics/tiny/lora";
  auto expected = read_tensors(folder / "logits.safetensors");
  Scratch scratch;
  write_rows(scratch / "rows.jsonl", expected["input_ids"], expected["input_ids"]);
  options::RunOptions options = plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl");
  options.adapter.adapter_name_or_path = (folder / "adapter").string();
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  const at::Tensor logits = run->engine->logits(data::collate(run->train_rows, {0}));
  EXPECT_LE(relative_l2(logits, expected["logits"][0]), 1e-5);
}

}  // namespace
}  // namespace shardtune::testing
