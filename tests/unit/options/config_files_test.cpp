#include <set>

#include "support.h"

// Every file in configs/ parses (those of configs/hardware are read by tests/unit/train/hardware_test.cpp, the models of
// configs/shapes by tests/cli/test_plan.py); the quick start has the values that its page promises.
namespace shardtune::options::test {
namespace {

const std::filesystem::path kConfigs = SHARDTUNE_SOURCE_DIR "/configs";

TEST(Configs, EveryFileParses) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kConfigs)) {
    const std::filesystem::path folder = entry.path().lexically_relative(kConfigs).begin()->string();
    if (!entry.is_regular_file() || folder == "hardware" || folder == "shapes") continue;
    ASSERT_EQ(entry.path().extension(), ".ini") << entry.path() << " is not an INI file: how should it be checked?";
    EXPECT_NO_THROW(run({"train", "--config", entry.path().string()})) << entry.path();
    names.insert(entry.path().filename().string());
  }
  EXPECT_TRUE(names.contains("smollm2_lora_quickstart.ini"));
}

TEST(Configs, QuickStart) {
  const auto result = run({"train", "--config", (kConfigs / "smollm2_lora_quickstart.ini").string()});
  const RunOptions& options = result.options;
  EXPECT_EQ(options.model.model_name_or_path, "runs/demo/SmolLM2-135M-Instruct");
  EXPECT_EQ(options.model.dtype, "float32");
  EXPECT_EQ(options.data.dataset_name, "runs/demo/chat");
  EXPECT_TRUE(options.data.packing);
  EXPECT_EQ(options.data.packing_strategy, "wrapped");
  EXPECT_EQ(options.data.max_length, 256);
  EXPECT_TRUE(options.adapter.use_peft_lora);
  EXPECT_EQ(options.adapter.lora_r, 8);
  EXPECT_EQ(options.adapter.lora_alpha, 16.0);
  EXPECT_EQ(options.adapter.lora_dropout, 0.1);
  EXPECT_EQ(options.adapter.lora_target_modules, "all-linear");
  EXPECT_EQ(options.optim.learning_rate, 1e-3);
  EXPECT_EQ(options.optim.lr_scheduler_type, "cosine");
  EXPECT_EQ(options.optim.warmup_steps, 2.0);
  EXPECT_EQ(options.train.per_device_train_batch_size, 2);
  EXPECT_EQ(options.train.per_device_eval_batch_size, 2);
  EXPECT_EQ(options.train.gradient_accumulation_steps, 1);
  EXPECT_EQ(options.train.max_steps, 20);
  EXPECT_TRUE(options.train.eval_on_start);
  EXPECT_EQ(options.train.eval_strategy, "epoch");
  EXPECT_EQ(options.train.save_strategy, "no");
  EXPECT_EQ(options.train.output_dir, "runs/quickstart");
}

}  // namespace
}  // namespace shardtune::options::test
