// Several adapters on one sharded model: random sequences of calls against models that know nothing of sets or of shards.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "shardtune/adapters/peft_folder.h"
#include "shardtune/comm/agree.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/train/run_adapters.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using ::testing::HasSubstr;

struct Shape {
  const char* name;
  std::int64_t rank;
  double alpha;
  const char* targets;
};
const Shape kShapes[] = {{"default", 4, 8, "q_proj,v_proj"},
                         {"second", 2, 6, "all-linear"},
                         {"third", 3, 3, "v_proj,down_proj,lm_head"},
                         {"fourth", 1, 2, "q_proj"}};

options::RunOptions run_options(const std::filesystem::path& rows, const char* strategy) {
  options::RunOptions options = plain_options(data_folder() / "models/tiny-odd", rows);
  options.adapter.use_peft_lora = true;
  options.adapter.lora_r = kShapes[0].rank;
  options.adapter.lora_alpha = kShapes[0].alpha;
  options.adapter.lora_target_modules = kShapes[0].targets;
  options.fsdp.sharding_strategy = strategy;
  options.train.max_steps = 100;
  options.optim.learning_rate = 1e-2;
  return options;
}

adapters::LoraConfig config_of(const Shape& shape, const model::ModelConfig& model) {
  adapters::AdapterOptions options;
  options.lora_r = shape.rank;
  options.lora_alpha = shape.alpha;
  options.lora_target_modules = shape.targets;
  options.lora_dropout = 0;
  adapters::LoraConfig config = adapters::make_lora_config(options, model);
  config.name = shape.name;
  return config;
}

at::Tensor logits_of(train::Run& run) { return run.engine->logits(data::collate(run.train_rows, {0})); }

/// The sharded run and the same calls on one rank alone.
class Pair {
 public:
  Pair(const SharedScratch& scratch, const char* strategy)
      : alone_(comm::make_self_communicator()),
        sharded_run_(train::build_run(run_options(scratch / "rows.jsonl", strategy), world())),
        whole_run_(train::build_run(run_options(scratch / "rows.jsonl", "NO_SHARD"), *alone_)), sharded_(*sharded_run_),
        whole_(*whole_run_) {}

  template <typename F>
  void both(F call) {
    call(sharded_);
    call(whole_);
  }

  /// One optimizer step on both; the losses must agree.
  void step(std::int64_t number) {
    const auto sharded = train::train_step(*sharded_run_, reference_batches(*sharded_run_, number), number);
    const auto whole = train::train_step(*whole_run_, reference_batches(*whole_run_, number), number);
    EXPECT_NEAR(sharded.loss, whole.loss, 1e-6 * whole.loss) << "step " << number;
    EXPECT_NEAR(sharded.grad_norm, whole.grad_norm, 5e-6 * whole.grad_norm) << "step " << number;
  }

  std::unique_ptr<comm::Communicator> alone_;
  std::unique_ptr<train::Run> sharded_run_, whole_run_;
  train::RunAdapters sharded_, whole_;
};

/// Logits of the base with the sum of adapters from their folders, worked out on a model that knows one adapter at most: their
/// factors side by side are one LoRA of the summed rank.
at::Tensor logits_with(const std::vector<std::filesystem::path>& folders, const SharedScratch& scratch) {
  options::RunOptions options = plain_options(data_folder() / "models/tiny-odd", scratch / "rows.jsonl");
  const auto alone = comm::make_self_communicator();
  const Scratch own;
  std::map<std::string, at::Tensor> a, b;
  for (const auto& folder : folders) {
    const auto config = read_json(folder / "adapter_config.json");
    const double scale = config["lora_alpha"].get<double>() / config["r"].get<double>();
    for (const auto& [name, tensor] : read_tensors(folder / "adapter_model.safetensors")) {
      const bool first = name.ends_with("lora_A.weight");
      at::Tensor& sum = (first ? a : b)[name];
      const at::Tensor part = first ? tensor : tensor * scale;
      sum = sum.defined() ? at::cat({sum, part}, first ? 0 : 1) : part.clone();
    }
  }
  nlohmann::json config = read_json(data_folder() / "numerics/tiny/lora/adapter/adapter_config.json");
  nlohmann::json ranks = nlohmann::json::object(), targets = nlohmann::json::array();
  std::vector<io::TensorView> views;
  for (auto* tensors : {&a, &b})
    for (auto& [name, tensor] : *tensors) {
      tensor = tensor.contiguous();
      views.push_back({name, Dtype::kF32, tensor.sizes().vec(), ops::bytes_of(tensor)});
      if (tensors == &b) continue;
      const std::string module = name.substr(17, name.size() - 17 - std::string(".lora_A.weight").size());
      targets.push_back(module);
      ranks[module] = tensor.size(0);
    }
  config["r"] = config["lora_alpha"] = 1;
  config["rank_pattern"] = config["alpha_pattern"] = ranks;
  config["target_modules"] = targets;
  std::ofstream(own / "adapter_config.json") << config.dump();
  io::write_safetensors(own / "adapter_model.safetensors", views, {{"format", "pt"}});
  if (!folders.empty()) options.adapter.adapter_name_or_path = own.path().string();
  options.adapter.use_peft_lora = true;  // without a folder: a new adapter, whose B is zero
  const auto run = train::build_run(options, *alone);
  return logits_of(*run);
}

class AdapterSets : public ::testing::TestWithParam<const char*> {};

TEST_P(AdapterSets, RandomCallsGiveWhatModelsWithOneAdapterGive) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  Pair pair(scratch, GetParam());
  std::mt19937 random(20261130);
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const auto one_of = [&](const std::vector<std::string>& names) { return names[pick(names.size())]; };
  std::int64_t steps = 0;
  std::map<std::string, int> calls;
  for (int call = 0; call < 60; ++call) {
    const std::vector<std::string> names = pair.sharded_.names();
    const std::string trained = pair.sharded_.trained();
    switch (pick(7)) {
      case 0: {
        const Shape& shape = kShapes[1 + pick(3)];
        if (std::ranges::find(names, shape.name) != names.end()) continue;
        pair.both([&](auto& set) { set.add(config_of(shape, pair.sharded_run_->config)); });
        ++calls["add"];
        break;
      }
      case 1: {
        const std::string name = one_of(names);
        if (name == trained || names.size() < 2) continue;
        pair.both([&](auto& set) { set.remove(name); });
        ++calls["remove"];
        break;
      }
      case 2: {
        std::set<std::string> active;
        for (const std::string& name : names)
          if (pick(2) == 0 || name == trained) active.insert(name);
        pair.both([&](auto& set) { set.set_active(active); });
        ++calls["set_active"];
        break;
      }
      case 3:
        pair.both([&](auto& set) { set.set_enabled(!set.enabled()); });
        ++calls["enable"];
        break;
      case 4: {
        const std::string name = pick(5) == 0 ? "" : one_of(names);
        pair.both([&](auto& set) { set.train(name); });
        ++calls["train"];
        break;
      }
      default:
        if (trained.empty() || !pair.sharded_.enabled()) continue;
        pair.step(steps++ % 20);
        ++calls["step"];
    }
    if (call % 4 != 3) continue;
    const at::Tensor logits = logits_of(*pair.sharded_run_);
    EXPECT_LE(relative_l2(logits, logits_of(*pair.whole_run_)), 1e-4) << "call " << call;
    std::vector<std::filesystem::path> folders;
    for (const std::string& name : pair.sharded_.names()) {
      if (!pair.sharded_.enabled() || !pair.sharded_.active().contains(name)) continue;
      folders.push_back(scratch / std::to_string(call) / name);
      on_rank_0([&] { std::filesystem::create_directories(folders.back()); });
      pair.sharded_.save(name, folders.back());
    }
    world().barrier();
    EXPECT_LE(relative_l2(logits, logits_with(folders, scratch)), 1e-5) << "call " << call;
    EXPECT_TRUE(at::equal(logits, logits_of(*pair.sharded_run_))) << "saving changed something at call " << call;
  }
  for (const char* kind : {"add", "remove", "set_active", "enable", "train", "step"})
    EXPECT_GE(calls[kind], 2) << kind << " was hardly ever called: the sequence shows too little";
}

INSTANTIATE_TEST_SUITE_P(Strategies, AdapterSets, ::testing::Values("FULL_SHARD", "SHARD_GRAD_OP"));

TEST(AdapterSet, FrozenAdaptersAndTheBaseStayAsTheyAre) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto run = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  train::RunAdapters set(*run);
  std::vector<at::Tensor> base;
  for (std::size_t unit = 0; unit < run->shards->units(); ++unit) base.push_back(run->shards->frozen(unit).local());
  const auto first = full_weights(*run);
  set.add(config_of(kShapes[1], run->config));
  set.train("second");
  const auto before = full_weights(*run);
  EXPECT_NE(first.size(), before.size());
  for (std::int64_t step = 0; step < 3; ++step) train::train_step(*run, reference_batches(*run, step), step);
  const auto after = full_weights(*run);
  EXPECT_GT(relative_l2(after.at("model.layers.0.mlp.up_proj.lora_A.weight"),
                        before.at("model.layers.0.mlp.up_proj.lora_A.weight")),
            1e-3);
  set.train("default");
  for (const auto& [name, tensor] : full_weights(*run)) EXPECT_TRUE(at::equal(tensor, first.at(name))) << name;
  // Not copied, not dealt again: the same memory.
  for (std::size_t unit = 0; unit < run->shards->units(); ++unit)
    EXPECT_EQ(run->shards->frozen(unit).local().const_data_ptr(), base[unit].const_data_ptr());
}

TEST(AdapterSet, TrainingGoesOnWhereItStopped) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto step = [](train::Run& run, std::int64_t number) {
    train::train_step(run, reference_batches(run, number), number);
  };
  const auto straight = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  for (std::int64_t number = 0; number < 4; ++number) step(*straight, number);
  const auto run = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  train::RunAdapters set(*run);
  for (std::int64_t number = 0; number < 2; ++number) step(*run, number);
  set.add(config_of(kShapes[1], run->config));
  set.train("second");
  step(*run, 2);
  set.train("default");
  set.set_active({"default"});
  for (std::int64_t number = 2; number < 4; ++number) step(*run, number);
  EXPECT_EQ(weights_hash(*run), weights_hash(*straight));
}

TEST(OtherAdapters, TakePartAndStayFrozen) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  options::RunOptions options = run_options(scratch / "rows.jsonl", "FULL_SHARD");
  std::vector<std::filesystem::path> folders;
  {
    const auto run = train::build_run(options, world());
    train::RunAdapters set(*run);
    set.add(config_of(kShapes[1], run->config));
    for (const char* name : {"second", "default"}) {
      set.train(name);
      for (std::int64_t step = 0; step < 2; ++step) train::train_step(*run, reference_batches(*run, step), step);
      folders.push_back(scratch / name);
      on_rank_0([&] { std::filesystem::create_directories(folders.back()); });
      set.save(name, folders.back());
    }
    world().barrier();
  }
  options.adapter.adapter_name_or_path = folders[1].string();
  options.adapter.other_adapters = "second=" + folders[0].string();
  const auto run = train::build_run(options, world());
  EXPECT_LE(relative_l2(logits_of(*run), logits_with(folders, scratch)), 1e-5);
  EXPECT_EQ(full_weights(*run).size(), read_tensors(folders[1] / "adapter_model.safetensors").size());
}

template <typename F>
std::string refusal(F call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(AdapterSet, WhatCannotBeIsRefusedAndChangesNothing) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto run = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  train::RunAdapters set(*run);
  const at::Tensor logits = logits_of(*run);
  EXPECT_THAT(refusal([&] { set.train("secnd"); }), HasSubstr("there is no adapter 'secnd'; there is default"));
  EXPECT_THAT(refusal([&] { set.remove("default"); }), HasSubstr("is being trained and cannot be deleted"));
  EXPECT_THAT(refusal([&] { set.set_active({}); }), HasSubstr("is being trained and must take part"));
  auto config = config_of(kShapes[1], run->config);
  config.name = "default";
  EXPECT_THAT(refusal([&] { set.add(config); }), HasSubstr("there is an adapter 'default' already"));
  config.name = "../up";
  EXPECT_THAT(refusal([&] { set.add(config); }), HasSubstr("cannot name an adapter"));
  config.name = "whole";
  config.modules_to_save = {"norm"};
  config.saved_modules = {"model.norm"};
  EXPECT_THAT(refusal([&] { set.add(config); }), HasSubstr("must be the only one of a run"));
  set.set_enabled(false);
  EXPECT_THAT(refusal([&] { train::train_step(*run, reference_batches(*run, 0), 0); }), HasSubstr("takes no part"));
  set.set_enabled(true);
  EXPECT_TRUE(at::equal(logits, logits_of(*run)));
}

TEST(OtherAdapters, WhatCannotBeIsRefused) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  options::RunOptions options = run_options(scratch / "rows.jsonl", "FULL_SHARD");
  const auto build = [&] { train::build_run(options, world()); };
  options.adapter.other_adapters = "style";
  EXPECT_THAT(refusal(build), HasSubstr("--other_adapters: 'style' is not NAME=FOLDER"));
  options.adapter.other_adapters = "default=somewhere";
  EXPECT_THAT(refusal(build), HasSubstr("the name 'default' is taken"));
}

TEST(AdapterSet, RanksThatAskForDifferentThingsAllLearnIt) {
  if (world().size() == 1) return;  // one rank cannot disagree
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto run = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  train::RunAdapters set(*run);
  set.add(config_of(kShapes[1], run->config));
  const std::string name = world().rank() == 0 ? "second" : "default";
  EXPECT_THAT(refusal([&] { set.train(name); }), HasSubstr("ranks ask for different changes"));
  EXPECT_EQ(set.trained(), "default");
}

}  // namespace
}  // namespace shardtune::testing
