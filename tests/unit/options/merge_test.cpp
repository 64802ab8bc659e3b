#include <algorithm>

#include "support.h"

// The options of `shardtune merge`.
namespace shardtune::options::test {
namespace {

Strings merge(Strings more = {}) {
  Strings all = {"merge", "--model_name_or_path", "m", "--adapter_name_or_path", "a", "--output_dir", "o"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Merge, HasItsOwnOptionsAndFewOfARun) {
  const auto parsed =
      run(merge({"--adapter_weights", "0.5,2", "--merge_base", "original", "--max_shard_size", "5GB", "--dtype",
                 "bfloat16", "--resize_token_embeddings", "600", "--use_4bit_quantization", "--use_nested_quant"}));
  EXPECT_EQ(parsed.options.command, "merge");
  EXPECT_EQ(parsed.options.merge.adapter_weights, "0.5,2");
  EXPECT_EQ(parsed.options.merge.merge_base, "original");
  EXPECT_EQ(parsed.options.merge.max_shard_size, "5GB");
  EXPECT_TRUE(parsed.options.quant.use_4bit_quantization) << "needs no use_peft_lora";
  Strings listed;
  for (const auto& option : parsed.effective) listed.push_back(option.name);
  EXPECT_EQ(std::count(listed.begin(), listed.end(), "learning_rate"), 0);
  EXPECT_EQ(std::count(listed.begin(), listed.end(), "merge_base"), 1);
}

TEST(Merge, DefaultIsTheTrainedBase) {
  const auto parsed = run(merge());
  EXPECT_EQ(parsed.options.merge.merge_base, "trained");
  EXPECT_EQ(parsed.options.merge.max_shard_size, "50GB");
  EXPECT_EQ(parsed.options.merge.adapter_weights, "");
}

TEST(Merge, WantsModelAdapterAndFolder) {
  EXPECT_TRUE(says(refusal({"merge", "--output_dir", "o"}), {"model_name_or_path, adapter_name_or_path"}));
  EXPECT_TRUE(says(refusal({"merge", "--model_name_or_path", "m", "--adapter_name_or_path", "a"}), {"output_dir"}));
}

TEST(Merge, WhatItDoesNotReadIsRefusedOnTheCommandLine) {
  EXPECT_TRUE(says(refusal(merge({"--learning_rate", "1e-4"})), {"learning_rate is for 'shardtune train'", "'merge'"}));
  EXPECT_TRUE(says(refusal(train({"--merge_base", "original"})), {"merge_base is for 'shardtune merge'", "'train'"}));
  EXPECT_TRUE(says(refusal(merge({"--merge_base", "quantised"})), {"merge_base", "trained or original"}));
}

TEST(Merge, TheFileOfTheRunMayBeGiven) {
  const TemporaryFile file(
      "use_peft_lora = True\nlearning_rate = 1e-3\nuse_4bit_quantization = True\ndataset_name = d\nlora_r = 4\n");
  const auto parsed = run(merge({"--config", file.path()}));
  EXPECT_TRUE(parsed.options.quant.use_4bit_quantization);
  EXPECT_FALSE(parsed.options.adapter.use_peft_lora);
  for (const auto& option : parsed.effective)
    if (option.name == "learning_rate") {
      EXPECT_FALSE(option.in_effect);
      EXPECT_TRUE(option.source.ends_with(", without effect")) << option.source;
    }
}

}  // namespace
}  // namespace shardtune::options::test
