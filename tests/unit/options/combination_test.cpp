#include "support.h"

// Required options and options that contradict each other.
namespace shardtune::options::test {
namespace {

TEST(Required, MissingOnesAreNamedTogether) {
  EXPECT_TRUE(says(refusal({"train"}), {"model_name_or_path, dataset_name, output_dir"}));
  EXPECT_TRUE(says(refusal({"train", "--dataset_name", "d"}), {"model_name_or_path, output_dir"}));
  const std::string one = refusal({"train", "--dataset_name", "d", "--output_dir", "o"});
  EXPECT_TRUE(says(one, {"model_name_or_path", "--model_name_or_path VALUE"}));
  EXPECT_EQ(one.find("dataset_name"), std::string::npos) << one;
}

TEST(Required, MayComeFromAnyPlace) {
  const TemporaryFile file("output_dir = o\n");
  const auto options =
      run({"train", "--config", file.path(), "--model_name_or_path", "m"}, {"SHARDTUNE_DATASET_NAME=d"}).options;
  EXPECT_EQ(options.model.model_name_or_path, "m");
  EXPECT_EQ(options.data.dataset_name, "d");
  EXPECT_EQ(options.train.output_dir, "o");
}

TEST(Combination, LoraOptionsNeedUsePeftLora) {
  const std::vector<Strings> cases = {{"--lora_r", "4"},
                                      {"--lora_alpha", "4"},
                                      {"--lora_dropout", "0"},
                                      {"--lora_target_modules", "all-linear"},
                                      {"--use_rslora"},
                                      {"--use_rslora", "False"},
                                      {"--adapter_name_or_path", "a"}};
  for (const Strings& given : cases) {
    EXPECT_TRUE(says(refusal(train(given)),
                     {"command line", given[0].substr(2), "use_peft_lora is False", "set use_peft_lora to True"}));
    Strings fixed = given;
    fixed.push_back("--use_peft_lora");
    EXPECT_NO_THROW(run(train(fixed)));
  }
  // The value of the default is an explicit wish all the same.
  EXPECT_TRUE(says(refusal(train({"--lora_r", "8"})), {"lora_r"}));
}

TEST(Combination, AdamsOptionsNeedAdam) {
  for (const char* name : {"--adam_beta1", "--adam_beta2", "--adam_epsilon"}) {
    EXPECT_TRUE(says(refusal(train({name, "0.5", "--optim", "sgd"})),
                     {std::string(name).substr(2), "does nothing while optim is sgd", "adamw_bnb_8bit"}));
    for (const char* optim :
         {"adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"})
      EXPECT_NO_THROW(run(train({name, "0.5", "--optim", optim}))) << optim;
  }
}

TEST(Combination, LoraPlusNeedsAnAdapterAndItsRatio) {
  EXPECT_TRUE(says(refusal(train({"--loraplus_lr_ratio", "16"})),
                   {"loraplus_lr_ratio", "use_peft_lora is False", "set use_peft_lora to True"}));
  EXPECT_TRUE(says(refusal(train({"--use_peft_lora", "--loraplus_lr_embedding", "1e-5"})),
                   {"loraplus_lr_embedding", "loraplus_lr_ratio is 0", "give loraplus_lr_ratio"}));
  EXPECT_NO_THROW(run(train({"--use_peft_lora", "--loraplus_lr_ratio", "16", "--loraplus_lr_embedding", "1e-5"})));
  // The file's wish gives way to the command line's.
  const TemporaryFile file("use_peft_lora = True\nloraplus_lr_ratio = 16\nloraplus_lr_embedding = 1e-5\n");
  EXPECT_NO_THROW(run(train({"--config", file.path(), "--loraplus_lr_ratio", "0"})));
  EXPECT_TRUE(says(refusal(train({"--use_peft_lora", "--loraplus_lr_ratio", "-1"})), {"0 or a finite number"}));
}

TEST(Combination, StartsOfNewAdapters) {
  for (const char* start : {"true", "gaussian", "pissa", "pissa_niter_16", "olora"})
    EXPECT_EQ(run(train({"--use_peft_lora", "--init_lora_weights", start})).options.adapter.init_lora_weights, start);
  for (const char* start : {"pissa_niter_", "pissa_niter_x", "pissa_niter_1000", "pissa_niter_-1", "corda"})
    EXPECT_TRUE(says(refusal(train({"--use_peft_lora", "--init_lora_weights", start})),
                     {"init_lora_weights", "pissa or olora, or pissa_niter_N"}));
}

TEST(Combination, TheOffendingPlaceIsNamed) {
  const TemporaryFile file("use_peft_lora = False\nlora_r = 4\n");
  EXPECT_TRUE(says(refusal(train({"--config", file.path()})), {file.path() + ":2", "lora_r"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_LORA_R=4"}), {"environment variable SHARDTUNE_LORA_R"}));
}

TEST(Combination, PackingStrategyNeedsPacking) {
  EXPECT_TRUE(says(refusal(train({"--packing_strategy", "bfd"})),
                   {"packing_strategy", "packing is False", "set packing to True"}));
  EXPECT_TRUE(says(refusal(train({"--packing_strategy", "bfd", "--packing", "no"})), {"packing_strategy"}));
  EXPECT_NO_THROW(run(train({"--packing_strategy", "bfd", "--packing"})));
}

TEST(Combination, WrappedAttentionNeedsWrappedRows) {
  EXPECT_TRUE(says(refusal(train({"--packing", "--wrapped_attention", "documents"})),
                   {"wrapped_attention", "packing_strategy is bfd", "set packing_strategy to wrapped"}));
  EXPECT_NO_THROW(run(train({"--packing", "--packing_strategy", "wrapped", "--wrapped_attention", "documents"})));
}

TEST(Combination, StepsNeedTheStrategy) {
  EXPECT_TRUE(
      says(refusal(train({"--eval_steps", "5"})), {"eval_steps", "eval_strategy is no", "set eval_strategy to steps"}));
  EXPECT_TRUE(says(refusal(train({"--eval_steps", "5", "--eval_strategy", "epoch"})), {"eval_strategy is epoch"}));
  EXPECT_NO_THROW(run(train({"--eval_steps", "5", "--eval_strategy", "steps"})));
  EXPECT_TRUE(says(refusal(train({"--save_steps", "5", "--save_strategy", "epoch"})),
                   {"save_steps", "set save_strategy to steps"}));
  EXPECT_TRUE(says(refusal(train({"--save_steps", "5", "--save_strategy", "no"})), {"save_strategy is no"}));
  EXPECT_NO_THROW(run(train({"--save_steps", "5", "--save_strategy", "steps"})));
  EXPECT_TRUE(says(refusal(train({"--save_total_limit", "2", "--save_strategy", "no"})),
                   {"save_total_limit", "steps or epoch"}));
  EXPECT_NO_THROW(run(train({"--save_total_limit", "2", "--save_strategy", "epoch"})));
}

TEST(Combination, WarmupNeedsAScheduleThatHasOne) {
  EXPECT_TRUE(says(refusal(train({"--warmup_steps", "5", "--lr_scheduler_type", "constant"})),
                   {"warmup_steps", "lr_scheduler_type is constant", "constant_with_warmup"}));
  EXPECT_NO_THROW(run(train({"--warmup_steps", "0", "--lr_scheduler_type", "constant"})));
  EXPECT_NO_THROW(run(train({"--warmup_steps", "5", "--lr_scheduler_type", "constant_with_warmup"})));
}

TEST(Combination, MaxStepsAndEpochsGoTogether) {
  const auto train_options = run(train({"--max_steps", "20", "--num_train_epochs", "2"})).options.train;
  EXPECT_EQ(train_options.max_steps, 20);
  EXPECT_EQ(train_options.num_train_epochs, 2.0);
}

TEST(Combination, ResumeAndOverwriteExcludeEachOther) {
  EXPECT_TRUE(says(refusal(train({"--resume_from_checkpoint", "--overwrite_output_dir"})),
                   {"resume_from_checkpoint", "overwrite_output_dir", "contradict"}));
  EXPECT_TRUE(says(refusal(train({"--resume_from_checkpoint=True"}), {"SHARDTUNE_OVERWRITE_OUTPUT_DIR=True"}),
                   {"environment variable SHARDTUNE_OVERWRITE_OUTPUT_DIR"}));
  EXPECT_NO_THROW(run(train({"--resume_from_checkpoint", "False", "--overwrite_output_dir"})));
  EXPECT_NO_THROW(run(train({"--resume_from_checkpoint", "c", "--overwrite_output_dir"})));  // c may lie elsewhere
  EXPECT_NO_THROW(run(train({"--resume_from_checkpoint", "c", "--overwrite_output_dir", "False"})));
}

}  // namespace
}  // namespace shardtune::options::test
