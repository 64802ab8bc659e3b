// Several adapters on one sharded model: what stays, what goes on, what is refused.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "adapter_kinds.h"
#include "curve.h"
#include "merged_by_hand.h"
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

const Kind kDefault = {"default", 4, 8, "q_proj,v_proj"}, kSecond = {"second", 2, 6, "all-linear"};

options::RunOptions run_options(const std::filesystem::path& rows, const char* strategy) {
  options::RunOptions options = plain_options(data_folder() / "models/tiny-odd", rows);
  take_kind(options.adapter, kDefault);
  options.fsdp.sharding_strategy = strategy;
  options.train.max_steps = 100;
  options.optim.learning_rate = 1e-2;
  return options;
}

at::Tensor logits_of(train::Run& run) { return run.engine->logits(data::collate(run.train_rows, {0})); }

TEST(AdapterSet, FrozenAdaptersAndTheBaseStayAsTheyAre) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto run = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  train::RunAdapters set(*run);
  std::vector<at::Tensor> base;
  for (std::size_t unit = 0; unit < run->shards->units(); ++unit) base.push_back(run->shards->frozen(unit).local());
  const auto first = full_weights(*run);
  set.add(config_of(kSecond, run->config));
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
  set.add(config_of(kSecond, run->config));
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
    set.add(config_of(kSecond, run->config));
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
  on_rank_0([&] {
    std::filesystem::create_directories(scratch / "merged");
    merge_by_hand(data_folder() / "models/tiny-odd", folders, scratch / "merged");
  });
  const auto alone = comm::make_self_communicator();
  options::RunOptions plain = plain_options(scratch / "merged", scratch / "rows.jsonl");
  const auto merged = train::build_run(plain, *alone, {}, {.kind = train::RunKind::kEvaluation});
  EXPECT_LE(relative_l2(logits_of(*run), merged->engine->logits(data::collate(merged->eval_rows, {0}))), 1e-5);
  EXPECT_EQ(full_weights(*run).size(), read_tensors(folders[1] / "adapter_model.safetensors").size());
}

/// PEFT with all of a folder's adapters active in order, the last trained: rank, DoRA, embedding and whole modules mixed.
class BesideOthers : public ::testing::TestWithParam<const char*> {};

TEST_P(BesideOthers, CurveIsThatOfPeft) {
  const auto folder = data_folder() / "numerics/tiny" / GetParam();
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl");
  options.adapter.adapter_name_or_path = (folder / "first").string();
  const auto reference = read_json(folder / "run.json");
  take_settings(options, reference["settings"]);
  const auto run = train::build_run(options, world(), {}, {.several_adapters = true});
  train::RunAdapters set(*run);
  std::string last;
  for (const char* name : {"second", "third"}) {
    if (!std::filesystem::exists(folder / name)) continue;
    set.load(name, folder / name);
    last = name;
  }
  const std::vector<std::string> names = set.names();
  set.set_active({names.begin(), names.end()});
  set.train(last);
  expect_curve(*run, reference);
}

INSTANTIATE_TEST_SUITE_P(Reference, BesideOthers, ::testing::Values("beside_dora", "beside_embedding"),
                         [](const auto& test) { return std::string(test.param); });

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
  auto config = config_of(kSecond, run->config);
  config.name = "default";
  EXPECT_THAT(refusal([&] { set.add(config); }), HasSubstr("there is an adapter 'default' already"));
  config.name = "../up";
  EXPECT_THAT(refusal([&] { set.add(config); }), HasSubstr("cannot name an adapter"));
  set.add(config_of({"norms", 1, 1, "k_proj", false, "norm"}, run->config));
  set.add(config_of({"norm", 1, 1, "k_proj", false, "model.norm"}, run->config));
  EXPECT_THAT(refusal([&] {
                set.set_active({"default", "norm", "norms"});
              }),
              HasSubstr("adapters 'norm' and 'norms' both train model.norm whole (modules_to_save); only one"));
  EXPECT_THAT(refusal([&] {
                set.add(config_of({"whole", 1, 1, "k_proj", false, "v_proj"}, run->config));
              }),
              HasSubstr("adapter 'whole' trains model.layers.0.self_attn.v_proj whole (modules_to_save), which adapter "
                        "'default' changes"));
  EXPECT_THAT(refusal([&] {
                set.add(config_of({"on_norm", 1, 1, "lm_head,k_proj", true, "q_proj"}, run->config));
              }),
              HasSubstr("the two cannot be of one model"));
  set.set_enabled(false);
  EXPECT_THAT(refusal([&] { train::train_step(*run, reference_batches(*run, 0), 0); }), HasSubstr("takes no part"));
  set.set_enabled(true);
  EXPECT_TRUE(at::equal(logits, logits_of(*run)));
}

TEST(AdapterSet, ARunBuiltForOneAdapterThatTrainsModulesWholeTakesNoOthers) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  options::RunOptions options = run_options(scratch / "rows.jsonl", "FULL_SHARD");
  options.adapter.lora_modules_to_save = "lm_head";
  const auto run = train::build_run(options, world());
  EXPECT_THAT(refusal([&] { train::RunAdapters{*run}; }), HasSubstr("build the run for several adapters"));
}

TEST(OtherAdapters, WhatCannotBeIsRefused) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  options::RunOptions options = run_options(scratch / "rows.jsonl", "FULL_SHARD");
  const auto build = [&] { train::build_run(options, world()); };
  options.adapter.other_adapters = "style";
  EXPECT_THAT(refusal(build), HasSubstr("--other_adapters: 'style' is not NAME=FOLDER"));
  options.adapter.other_adapters = "style=somewhere,,facts=somewhere";
  EXPECT_THAT(refusal(build), HasSubstr("--other_adapters 'style=somewhere,,facts=somewhere' has an empty entry"));
  options.adapter.other_adapters = "a/b=somewhere";
  EXPECT_THAT(refusal(build), HasSubstr("'a/b' cannot name an adapter (--other_adapters)"));
  options.adapter.other_adapters = "default=somewhere";
  EXPECT_THAT(refusal(build), HasSubstr("the name 'default' is taken"));
}

TEST(AdapterSet, RanksThatAskForDifferentThingsAllLearnIt) {
  if (world().size() == 1) return;  // one rank cannot disagree
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto run = train::build_run(run_options(scratch / "rows.jsonl", "FULL_SHARD"), world());
  train::RunAdapters set(*run);
  set.add(config_of(kSecond, run->config));
  const std::string name = world().rank() == 0 ? "second" : "default";
  EXPECT_THAT(refusal([&] { set.train(name); }), HasSubstr("ranks ask for different changes"));
  EXPECT_EQ(set.trained(), "default");
}

}  // namespace
}  // namespace shardtune::testing
