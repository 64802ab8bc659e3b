#include "support.h"

// What a weaker place gave, after a stronger one has turned its condition off: listed, and without effect.
namespace shardtune::options::test {
namespace {

/// Of a run with these options in its file and more above it.
ParseResult above_file(const std::string& file_text, const Strings& command_line, const Strings& environment = {}) {
  const TemporaryFile file(file_text);
  Strings more = {"--config", file.path()};
  more.insert(more.end(), command_line.begin(), command_line.end());
  ParseResult result = run(train(more), environment);
  for (EffectiveOption& option : result.effective)  // without the name of the file, which differs
    if (option.source.starts_with("config "))
      option.source = "config FILE" + option.source.substr(7 + file.path().size());
  return result;
}

EffectiveOption idle(const std::string& name, const std::string& value) {
  return {name, value, "config FILE, without effect", false};
}

TEST(TurnedOff, ByTheCommandLine) {
  const auto result =
      above_file("save_strategy = steps\nsave_steps = 5\nsave_total_limit = 2\n", {"--save_strategy", "no"});
  EXPECT_EQ(effective(result, "save_steps"), idle("save_steps", "5"));
  EXPECT_EQ(effective(result, "save_total_limit"), idle("save_total_limit", "2"));
  EXPECT_EQ(effective(result, "save_strategy").source, "command line");
  EXPECT_EQ(result.options.train.save_steps, train::TrainOptions().save_steps);
  EXPECT_EQ(result.options.train.save_total_limit, train::TrainOptions().save_total_limit);
}

TEST(TurnedOff, OnlyWhatTheConditionIsFor) {
  const auto result =
      above_file("save_strategy = steps\nsave_steps = 5\nsave_total_limit = 2\n", {"--save_strategy", "epoch"});
  EXPECT_FALSE(effective(result, "save_steps").in_effect);
  EXPECT_TRUE(effective(result, "save_total_limit").in_effect);
  EXPECT_EQ(result.options.train.save_total_limit, 2);
}

TEST(TurnedOff, EveryConditionOfTheTable) {
  struct Case {
    std::string file;
    Strings command_line;
    Strings idle;
  };
  const std::vector<Case> cases = {
      {"use_peft_lora = True\nlora_r = 4\nlora_dropout = 0.1\nadapter_name_or_path = a\n",
       {"--use_peft_lora", "False"},
       {"lora_r", "lora_dropout", "adapter_name_or_path"}},
      {"packing = True\npacking_strategy = wrapped\nwrapped_attention = documents\n",
       {"--packing", "False"},
       {"packing_strategy", "wrapped_attention"}},
      {"packing = True\npacking_strategy = wrapped\nwrapped_attention = documents\n",
       {"--packing_strategy", "bfd"},
       {"wrapped_attention"}},
      {"eval_strategy = steps\neval_steps = 3\n", {"--eval_strategy", "epoch"}, {"eval_steps"}},
      {"lr_scheduler_type = cosine\nwarmup_steps = 3\n", {"--lr_scheduler_type", "constant"}, {"warmup_steps"}},
      {"use_peft_lora = True\nuse_4bit_quantization = True\nuse_nested_quant = True\nquantised_cache = q\n",
       {"--use_4bit_quantization", "False"},
       {"use_nested_quant", "quantised_cache"}},
      {"gradient_checkpointing = True\n", {"--activation_policy", "keep"}, {"gradient_checkpointing"}},
      {"activation_policy = every_2\n", {"--gradient_checkpointing", "False"}, {"activation_policy"}},
      {"activation_policy = auto\nmemory_budget_gib = 4\n", {"--activation_policy", "keep"}, {"memory_budget_gib"}},
      {"memory_budget_gib = 4\n", {"--gradient_checkpointing"}, {"memory_budget_gib"}}};
  const auto plain = run(train());
  for (const Case& test : cases) {
    const auto result = above_file(test.file, test.command_line);
    std::size_t count = 0;
    for (const EffectiveOption& option : result.effective) count += option.in_effect ? 0 : 1;
    EXPECT_EQ(count, test.idle.size()) << test.file;
    const auto given = given_names(result.effective);
    for (const auto& name : test.idle) {
      EXPECT_FALSE(effective(result, name).in_effect) << name;
      EXPECT_FALSE(given.contains(name)) << name;
    }
    // The run is that of a file without these lines.
    EXPECT_EQ(result.options.adapter.lora_r, plain.options.adapter.lora_r);
    EXPECT_EQ(result.options.adapter.adapter_name_or_path, "");
    EXPECT_EQ(result.options.data.wrapped_attention, "row");
    EXPECT_EQ(result.options.train.eval_steps, 0);
    EXPECT_EQ(result.options.optim.warmup_steps, plain.options.optim.warmup_steps);
    EXPECT_EQ(result.options.quant.quantised_cache, "");
    EXPECT_EQ(result.options.model.memory_budget_gib, 0);
  }
}

TEST(TurnedOff, FromTheEnvironmentAndInIt) {
  const auto file = above_file("save_strategy = steps\nsave_steps = 5\n", {}, {"SHARDTUNE_SAVE_STRATEGY=no"});
  EXPECT_EQ(effective(file, "save_steps"), idle("save_steps", "5"));
  const auto variable = run(train({"--save_strategy", "no"}), {"SHARDTUNE_SAVE_STEPS=5"});
  EXPECT_EQ(effective(variable, "save_steps"),
            (EffectiveOption{"save_steps", "5", "environment, without effect", false}));
}

TEST(TurnedOff, NotByAnEquallyStrongOrAWeakerPlace) {
  EXPECT_TRUE(says(refusal(train({"--save_strategy", "no", "--save_steps", "5"})), {"save_steps", "does nothing"}));
  EXPECT_TRUE(says(refusal(train({"--save_steps", "5"}), {"SHARDTUNE_SAVE_STRATEGY=no"}), {"save_steps"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_LORA_R=4"}), {"lora_r", "use_peft_lora is False"}));
  const TemporaryFile both("lr_scheduler_type = constant\nwarmup_steps = 3\n");
  EXPECT_TRUE(says(refusal(train({"--config", both.path()})), {both.path() + ":2", "warmup_steps"}));
  const TemporaryFile packing("packing = False\n");
  EXPECT_TRUE(says(refusal(train({"--config", packing.path(), "--packing_strategy", "bfd"})), {"packing_strategy"}));
}

TEST(TurnedOff, ValuesAreCheckedAllTheSame) {
  const TemporaryFile file("save_strategy = steps\nsave_steps = x\n");
  EXPECT_TRUE(says(refusal(train({"--config", file.path(), "--save_strategy", "no"})), {file.path() + ":2", "'x'"}));
}

TEST(TurnedOff, IsLeftOutOfAnIniFileAndShownInTheList) {
  const auto result = above_file("save_strategy = steps\nsave_steps = 5\n", {"--save_strategy", "no"});
  EXPECT_EQ(effective_as_ini(result.effective).find("save_steps"), std::string::npos);
  EXPECT_TRUE(says(format_effective(result.effective), {"(config FILE, without effect)"}));
  EXPECT_TRUE(says(effective_as_json(result.effective), {"config FILE, without effect"}));
}

TEST(TurnedOff, ActivationsThatAgreeBothCount) {
  const auto result = above_file("gradient_checkpointing = True\n", {"--activation_policy", "recompute"});
  EXPECT_TRUE(effective(result, "gradient_checkpointing").in_effect);
}

}  // namespace
}  // namespace shardtune::options::test
