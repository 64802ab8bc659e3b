#include <algorithm>
#include <sstream>

#include "support.h"

// --help, --version and the page docs/options.md.
namespace shardtune::options::test {
namespace {

const Strings kNames = {"use_4bit_quantization",
                        "use_8bit_quantization",
                        "bnb_4bit_quant_type",
                        "use_nested_quant",
                        "bnb_4bit_blocksize",
                        "quantised_cache",
                        "bnb_4bit_compute_dtype",
                        "bnb_4bit_quant_storage_dtype",
                        "model_name_or_path",
                        "ignore_plan",
                        "dtype",
                        "blas",
                        "adapter_dtype",
                        "dataset_name",
                        "dataset_train_split",
                        "dataset_test_split",
                        "dataset_text_field",
                        "chat_template_format",
                        "seed",
                        "max_length",
                        "packing",
                        "packing_strategy",
                        "wrapped_attention",
                        "shuffle",
                        "num_train_epochs",
                        "max_steps",
                        "per_device_train_batch_size",
                        "per_device_eval_batch_size",
                        "gradient_accumulation_steps",
                        "optim",
                        "learning_rate",
                        "lr_scheduler_type",
                        "warmup_steps",
                        "weight_decay",
                        "max_grad_norm",
                        "adam_beta1",
                        "adam_beta2",
                        "adam_epsilon",
                        "loraplus_lr_ratio",
                        "loraplus_lr_embedding",
                        "logging_steps",
                        "eval_strategy",
                        "eval_steps",
                        "eval_on_start",
                        "save_strategy",
                        "save_steps",
                        "save_total_limit",
                        "output_dir",
                        "overwrite_output_dir",
                        "resume_from_checkpoint",
                        "use_peft_lora",
                        "lora_r",
                        "lora_alpha",
                        "lora_dropout",
                        "lora_target_modules",
                        "use_rslora",
                        "use_dora",
                        "exclude_modules",
                        "layers_to_transform",
                        "layers_pattern",
                        "rank_pattern",
                        "alpha_pattern",
                        "lora_bias",
                        "init_lora_weights",
                        "adapter_name_or_path",
                        "ensure_weight_tying",
                        "lora_modules_to_save",
                        "other_adapters",
                        "resize_token_embeddings",
                        "ffn_chunk_tokens",
                        "table_pieces",
                        "mixed_precision",
                        "reduce_dtype",
                        "fsdp_version",
                        "fsdp_sharding_strategy",
                        "shard_group_size",
                        "fsdp_reshard_after_forward",
                        "fsdp_backward_prefetch",
                        "fsdp_forward_prefetch",
                        "fsdp_auto_wrap_policy",
                        "fsdp_min_num_params",
                        "fsdp_transformer_layer_cls_to_wrap",
                        "share_base_on_node",
                        "accumulation_order",
                        "use_reentrant",
                        "activation_policy",
                        "memory_budget_gib",
                        "gradient_checkpointing",
                        "config",
                        "trainable_token_indices"};

TEST(Help, EveryWayToAskGivesTheSameText) {
  const std::string text = run({"--help"}).help;
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(run({"train", "--help"}).help, text);
  EXPECT_EQ(run({"train", "--packing", "--help", "--seed", "x"}).help, text) << "values are not looked at";
  EXPECT_EQ(run(train({"--help", "False"})).help, "");
  EXPECT_TRUE(says(refusal(train({"--help", "me"})), {"help", "'me'"}));
}

TEST(Help, NamesEveryOptionWithGroupsUnitsAndDefaults) {
  const std::string text = run({"--help"}).help;
  for (const auto& name : kNames) EXPECT_NE(text.find("  --" + name + " "), std::string::npos) << name;
  EXPECT_TRUE(
      says(text, {"mpirun -np 2 shardtune train --config", "\nAdapter\n", "\nOptimizer\n",
                  "--max_length INTEGER  [tokens]", "Default: 1024.", "Required.", "Only with use_peft_lora = True."}));
  EXPECT_TRUE(says(text, {"\n       shardtune plan --world_size RANKS", "configs/shapes/llama-3.1-70b"}));
  EXPECT_TRUE(says(text, {"shardtune merge --model_name_or_path FOLDER", "\nMerging (shardtune merge)\n"}));
  EXPECT_TRUE(says(text, {"shardtune evaluate|generate", "  --max_new_tokens INTEGER  [tokens]", "For train, plan."}));
}

TEST(Help, FitsInto100Columns) {
  std::istringstream lines(run({"--help"}).help);
  int widest = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    widest = std::max(widest, static_cast<int>(line.size()));
  }
  EXPECT_GT(widest, 90) << "the width is used";
}

TEST(Help, Version) {
  EXPECT_EQ(run({"--version"}).help, "shardtune " SHARDTUNE_VERSION "\n");
  EXPECT_EQ(run({"train", "--version"}).help, run({"--version"}).help);
}

TEST(Effective, HasEveryOption) {
  Strings listed;
  for (const auto& option : run(train()).effective) listed.push_back(option.name);
  Strings wanted = kNames;
  std::sort(listed.begin(), listed.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(listed, wanted);
}

TEST(Docs, OptionsPageIsWhatTheCodePrints) {
  std::ifstream file(SHARDTUNE_SOURCE_DIR "/docs/options.md");
  ASSERT_TRUE(file) << "docs/options.md is missing; write it with: build/shardtune help-markdown > docs/options.md";
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), run({"help-markdown"}).help)
      << "docs/options.md is out of date; write it anew with: build/shardtune help-markdown > docs/options.md";
  EXPECT_TRUE(says(text.str(), {"| `SHARDTUNE_SKIP_PACKAGES` | `1`: ", "without effect"}));
}

}  // namespace
}  // namespace shardtune::options::test
