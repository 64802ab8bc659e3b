// Acceptance cases A36, A37 and A40: adapters of every kind are loaded, evaluated, trained for a step and written again, on all
// ranks of the job. The values are those of the case files (PEFT 0.21).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/export/export.h"
#include "shardtune/io/safetensors.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using ::testing::HasSubstr;

options::RunOptions case_run(const char* adapter) {
  options::RunOptions options = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
  options.adapter.adapter_name_or_path = (case_folder() / adapter).string();
  options.optim.learning_rate = 1e-2;
  return options;
}

class AdapterCases : public ::testing::TestWithParam<const char*> {};

TEST_P(AdapterCases, RowLossesLastLogitsAndScales) {
  const auto expected = read_json(case_folder() / "adapters-expected.json")[GetParam()];
  const auto run = train::build_run(case_run(GetParam()), world());
  for (const auto& [module, scale] : expected["scaling_layer1"].items())
    EXPECT_DOUBLE_EQ(run->lora->scaling_of(module), scale.get<double>()) << module;
  const auto& losses = expected["mean_loss_per_row"];
  ASSERT_EQ(run->train_rows.size(), losses.size());
  for (std::size_t row = 0; row < losses.size(); ++row) {
    const data::MicroBatch batch = data::collate(run->train_rows, {static_cast<std::int64_t>(row)});
    const double loss = run->engine->evaluate(batch) / static_cast<double>(batch.target_count);
    EXPECT_NEAR(loss, losses[row].get<double>(), 2e-4) << "row " << row;
  }
  // The file counts rows from 1.
  const at::Tensor last = run->engine->logits(data::collate(run->train_rows, {1}))[-1];
  const auto& logits = expected["last_position_logits_0_to_7_row_2"];
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(last[static_cast<std::int64_t>(i)].item<double>(), logits[i].get<double>(), 2e-4) << "logit " << i;
}

TEST_P(AdapterCases, TrainedFolderHasItsNamesAndSettings) {
  SharedScratch scratch;
  const auto run = train::build_run(case_run(GetParam()), world());
  const auto before = full_weights(*run);
  run_steps(*run, 0, 1);
  const auto after = full_weights(*run);
  for (const auto& [name, tensor] : after)
    EXPECT_FALSE(at::equal(tensor, before.at(name))) << name << " was not trained";
  on_rank_0([&] { std::filesystem::create_directories(scratch / "out"); });
  exporting::write_adapter(scratch / "out", *run->lora, "base-gqa", *run->shards, world());
  world().barrier();
  const io::SafetensorsFolder theirs(case_folder() / GetParam(), "adapter_model"),
      ours(scratch / "out", "adapter_model");
  EXPECT_EQ(ours.names(), theirs.names());
  for (const std::string& name : theirs.names()) EXPECT_EQ(ours.tensor(name).shape, theirs.tensor(name).shape) << name;
  const auto wanted = read_json(case_folder() / GetParam() / "adapter_config.json"),
             found = read_json(scratch / "out/adapter_config.json");
  for (const char* key :
       {"r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "peft_type", "task_type"})
    EXPECT_EQ(found[key], wanted[key]) << key;
}

INSTANTIATE_TEST_SUITE_P(A36AndA40, AdapterCases,
                         ::testing::Values("lora-plain", "lora-rslora", "lora-patterns", "lora-dora"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(CaseA37, ForeignPrefixesAreRefusedWithCountAndNames) {
  try {
    train::build_run(case_run("lora-badprefix"), world());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadModel);
    EXPECT_THAT(error.what(), HasSubstr("28 tensors missing (first: base_model.model.model.layers.0."));
    EXPECT_THAT(error.what(),
                HasSubstr("14 tensors fit nothing (first: _orig_mod.base_model.model.model._fsdp_wrapped_module."));
  }
}

}  // namespace
}  // namespace shardtune::testing
