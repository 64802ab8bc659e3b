// Adapters that start from the base's weights, on all ranks of the job: PiSSA and OLoRA against PEFT, which changes the base
// instead, and what they leave as it was.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "curve.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/start.h"
#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "shardtune/export/export.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/model/weights.h"
#include "shardtune/train/run_adapters.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using ::testing::HasSubstr;

options::RunOptions start_options(const SharedScratch& scratch, const char* model, const std::string& start) {
  on_rank_0([&] {
    if (!std::filesystem::exists(scratch / "rows.jsonl")) write_training_rows(scratch / "rows.jsonl", model);
  });
  options::RunOptions options = plain_options(data_folder() / "models" / model, scratch / "rows.jsonl");
  options.adapter.init_lora_weights = start;
  options.adapter.lora_r = 4;
  options.adapter.lora_alpha = 8;
  options.optim.learning_rate = 2e-3;
  options.train.max_steps = 20;
  return options;
}

at::Tensor logits_of(train::Run& run) { return run.engine->logits(data::collate(run.train_rows, {0})); }

std::string refusal(const options::RunOptions& options) {
  try {
    train::build_run(options, world());
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage) << error.what();
    return error.what();
  }
  return "no error";
}

void write_folder(train::Run& run, const std::filesystem::path& folder) {
  on_rank_0([&] { std::filesystem::create_directories(folder); });
  exporting::write_adapter(folder, *run.lora, "base", *run.shards, world());
  world().barrier();
}

/// W + scale * B A of a module with the folder's tensors.
at::Tensor merged_weight(const std::filesystem::path& folder, const std::string& model, const std::string& weight) {
  const std::string module = weight.substr(0, weight.size() - std::string(".weight").size());
  auto tensors = read_tensors(folder / "adapter_model.safetensors");
  const io::SafetensorsFolder base(data_folder() / "models" / model);
  at::Tensor sum = at::empty(base.tensor(weight).shape, at::kFloat);
  model::read_elements(base, weight, 0, sum);
  const auto config = model::read_config(data_folder() / "models" / model);
  const adapters::LoraConfig lora = adapters::read_lora_config(folder, config);
  return sum + lora.scaling_of(module) * tensors.at("base_model.model." + module + ".lora_B.weight")
                                             .matmul(tensors.at("base_model.model." + module + ".lora_A.weight"));
}

struct Reference {
  const char *model, *name;
};
class StartCurves : public ::testing::TestWithParam<Reference> {};

TEST_P(StartCurves, TwentyStepsAndTheMergedWeights) {
  const auto [model, name] = GetParam();
  const auto numerics = data_folder() / "numerics" / model / name;
  const auto reference = read_json(numerics / "run.json");
  const auto& settings = reference["settings"];
  SharedScratch scratch;
  options::RunOptions options = start_options(scratch, model, settings["init_lora_weights"]);
  take_settings(options, settings);
  options.adapter.lora_r = settings["r"];
  options.adapter.lora_alpha = settings["lora_alpha"];
  options.adapter.use_rslora = settings.value("use_rslora", false);
  for (const auto& [key, text] : {std::pair("rank_pattern", &options.adapter.rank_pattern),
                                  std::pair("alpha_pattern", &options.adapter.alpha_pattern)})
    if (settings.contains(key)) *text = settings[key].dump();
  const auto run = train::build_run(options, world());
  expect_curve(*run, reference);
  write_folder(*run, scratch / "adapter");
  for (const auto& [weight, merged] : read_tensors(numerics / "merged.safetensors"))
    EXPECT_LE(relative_l2(merged_weight(scratch / "adapter", model, weight), merged), 5e-5) << weight;
}

INSTANTIATE_TEST_SUITE_P(Reference, StartCurves,
                         ::testing::Values(Reference{"tiny", "pissa"}, Reference{"tiny", "olora"},
                                           Reference{"tiny-odd", "pissa_pattern"},
                                           Reference{"tiny-odd", "olora_pattern"}),
                         [](const auto& test) { return std::string(test.param.name); });

class Starts : public ::testing::TestWithParam<const char*> {};

/// With an adapter on the head of a tied model, which borrows its weight, and on the embedding, whose adapter starts at zero.
TEST_P(Starts, LeaveTheOutputsAsTheyAre) {
  SharedScratch scratch;
  options::RunOptions options = start_options(scratch, "tiny-llama3", GetParam());
  options.adapter.lora_target_modules = "embed_tokens,lm_head,q_proj,down_proj";
  const auto started = train::build_run(options, world());
  options.adapter.init_lora_weights = "true";
  const auto plain = train::build_run(options, world());
  EXPECT_LE(relative_l2(logits_of(*started), logits_of(*plain)), 1e-6);
  // It is no start from zero.
  const auto weights = full_weights(*started);
  EXPECT_GT(at::norm(weights.at("lm_head.lora_B.weight")).item<double>(), 0.1);
}

/// The trained folder as a plain adapter over the same base.
TEST_P(Starts, FolderGivesTheSameLogits) {
  SharedScratch scratch;
  options::RunOptions options = start_options(scratch, "tiny-llama3", GetParam());
  options.adapter.lora_target_modules = "embed_tokens,lm_head,q_proj,down_proj";
  options.adapter.use_rslora = true;
  options.adapter.rank_pattern = "q_proj=3";
  options.adapter.alpha_pattern = "down_proj=5";
  const auto run = train::build_run(options, world());
  run_steps(*run, 0, 2);
  write_folder(*run, scratch / "adapter");
  options::RunOptions again = plain_options(data_folder() / "models/tiny-llama3", scratch / "rows.jsonl");
  again.adapter.adapter_name_or_path = (scratch / "adapter").string();
  const auto loaded = train::build_run(again, world());
  EXPECT_LE(relative_l2(logits_of(*loaded), logits_of(*run)), 1e-6);
  const auto config = read_json(scratch / "adapter/adapter_config.json");
  EXPECT_EQ(config["r"], 8);
  EXPECT_EQ(config["init_lora_weights"], true);
}

/// The raw losses and weights of one rank alone, over a quantised base as well; with dropout, which the frozen factors do not have.
TEST_P(Starts, RawBitsOfOneRankAlone) {
  SharedScratch scratch;
  const auto self = comm::make_self_communicator();
  for (const bool quantised : {false, true}) {
    options::RunOptions options = start_options(scratch, "tiny-odd", GetParam());
    options.quant.use_4bit_quantization = quantised;
    options.adapter.lora_dropout = 0.2;
    options.optim.max_grad_norm = 0;  // the norm's last bits depend on the cuts
    std::vector<std::string> hashes;
    std::vector<double> losses;
    for (comm::Communicator* communicator : {&world(), self.get()}) {
      const auto run = train::build_run(options, *communicator);
      for (std::int64_t step = 0; step < 2; ++step)
        losses.push_back(train::train_step(*run, reference_batches(*run, step), step).loss);
      hashes.push_back(weights_hash(*run));
    }
    EXPECT_EQ(hashes[0], hashes[1]) << quantised;
    EXPECT_EQ(losses[0], losses[2]) << quantised;
    EXPECT_EQ(losses[1], losses[3]) << quantised;
  }
}

/// A resumed run does not work the factors out again: they come out of the checkpoint.
TEST_P(Starts, ResumedRunGoesOnExactly) {
  SharedScratch scratch;
  const options::RunOptions options = start_options(scratch, "tiny-odd", GetParam());
  const auto straight = train::build_run(options, world());
  run_steps(*straight, 0, 2);
  const auto folder = checkpoint::save(scratch.path(), {.step = 2, .optimizer_steps = 2}, *straight->shards,
                                       *straight->optimizer, world());
  const auto expected = run_steps(*straight, 2, 4);
  const auto resumed = train::build_run(options, world(), {}, {.resumes = true});
  checkpoint::load(folder, {}, *resumed->shards, *resumed->optimizer, world());
  const auto rest = run_steps(*resumed, 2, 4);
  for (std::size_t i = 0; i < rest.size(); ++i) EXPECT_EQ(rest[i].loss, expected[i].loss) << "step " << i + 3;
  EXPECT_EQ(weights_hash(*resumed), weights_hash(*straight));
  EXPECT_TRUE(at::equal(logits_of(*resumed), logits_of(*straight)));
}

TEST_P(Starts, SwitchedOffWithTheirAdapterAndBesideOthers) {
  SharedScratch scratch;
  const options::RunOptions options = start_options(scratch, "tiny-odd", GetParam());
  options::RunOptions plain_start = options;
  plain_start.adapter.init_lora_weights = "true";
  const auto plain = train::build_run(plain_start, world());
  const at::Tensor base = logits_of(*plain);
  const auto run = train::build_run(options, world());
  run_steps(*run, 0, 2);
  const at::Tensor trained = logits_of(*run);
  EXPECT_GT(relative_l2(trained, base), 1e-3);
  write_folder(*run, scratch / "adapter");
  train::RunAdapters adapters(*run);
  EXPECT_EQ(adapters.names(), std::vector<std::string>{"default"});
  adapters.set_enabled(false);
  EXPECT_TRUE(at::equal(logits_of(*run), base));
  adapters.set_enabled(true);
  EXPECT_TRUE(at::equal(logits_of(*run), trained));
  // As a second adapter of the same folder: the step made from the base counts twice, whatever came first.
  adapters.load("again", scratch / "adapter");
  adapters.set_active({"default", "again"});
  const at::Tensor twice = logits_of(*run);
  adapters.train("again");
  adapters.set_active({"again"});
  EXPECT_LE(relative_l2(logits_of(*run), trained), 1e-6);
  adapters.set_active({"default", "again"});
  EXPECT_LE(relative_l2(logits_of(*run), twice), 1e-6);
  on_rank_0([&] { std::filesystem::create_directories(scratch / "saved"); });
  adapters.save("default", scratch / "saved");
  if (world().rank() == 0) {
    const auto saved = read_tensors(scratch / "saved/adapter_model.safetensors");
    for (const auto& [name, tensor] : read_tensors(scratch / "adapter/adapter_model.safetensors"))
      EXPECT_TRUE(at::equal(tensor, saved.at(name))) << name;
  }
  adapters.remove("default");
  adapters.set_active({"again"});
  EXPECT_LE(relative_l2(logits_of(*run), trained), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Starts, ::testing::Values("pissa", "pissa_niter_4", "olora"),
                         [](const auto& test) { return std::string(test.param); });

TEST(StartRefusals, WhatCannotBe) {
  SharedScratch scratch;
  options::RunOptions options = start_options(scratch, "tiny-odd", "pissa");
  options.adapter.use_dora = true;
  EXPECT_THAT(refusal(options), HasSubstr("--init_lora_weights pissa and --use_dora"));
  options.adapter.use_dora = false;
  options.adapter.lora_r = 60;  // the keys and values have 48 rows
  EXPECT_THAT(refusal(options), HasSubstr("rank 60 is more than the 48 rows of model.layers.0.self_attn.k_proj have"));
}

}  // namespace
}  // namespace shardtune::testing
