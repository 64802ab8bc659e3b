#include <nlohmann/json.hpp>
#include <set>

#include "support.h"

// Command line over environment over INI file over default, and the list that shows which one counted.
namespace shardtune::options::test {
namespace {

TEST(Precedence, CommandLineOverEnvironmentOverFileOverDefault) {
  const TemporaryFile file("seed = 1\nmax_length = 101\nlogging_steps = 1001\n");
  const auto result =
      run(train({"--config", file.path(), "--seed", "3"}), {"SHARDTUNE_SEED=2", "SHARDTUNE_MAX_LENGTH=102"});
  EXPECT_EQ(result.options.data.seed, 3u);
  EXPECT_EQ(result.options.data.max_length, 102);
  EXPECT_EQ(result.options.train.logging_steps, 1001);
  EXPECT_EQ(result.options.config, file.path());
  EXPECT_EQ(effective(result, "seed"), (EffectiveOption{"seed", "3", "command line"}));
  EXPECT_EQ(effective(result, "max_length"), (EffectiveOption{"max_length", "102", "environment"}));
  EXPECT_EQ(effective(result, "logging_steps"), (EffectiveOption{"logging_steps", "1001", "config " + file.path()}));
  EXPECT_EQ(effective(result, "lora_r"), (EffectiveOption{"lora_r", "8", "default"}));
}

TEST(Precedence, ABooleanIsTurnedOffFromAbove) {
  const TemporaryFile file("packing = True\n");
  EXPECT_TRUE(run(train({"--config", file.path()})).options.data.packing);
  EXPECT_FALSE(run(train({"--config", file.path(), "--packing", "False"})).options.data.packing);
  EXPECT_FALSE(run(train({"--config", file.path()}), {"SHARDTUNE_PACKING=0"}).options.data.packing);
}

TEST(Precedence, TheFileItselfMayComeFromTheEnvironment) {
  const TemporaryFile file("seed = 1\n");
  const TemporaryFile other("seed = 2\n");
  EXPECT_EQ(run(train(), {"SHARDTUNE_CONFIG=" + file.path()}).options.data.seed, 1u);
  EXPECT_EQ(run(train({"--config", other.path()}), {"SHARDTUNE_CONFIG=" + file.path()}).options.data.seed, 2u);
}

TEST(Precedence, AnOverriddenValueMustStillBeRight) {
  const TemporaryFile file("\nseed = x\n");
  EXPECT_TRUE(says(refusal(train({"--config", file.path(), "--seed", "3"})), {file.path() + ":2", "seed", "'x'"}));
  EXPECT_TRUE(says(refusal(train({"--seed", "3"}), {"SHARDTUNE_SEED=x"}), {"SHARDTUNE_SEED", "'x'"}));
}

TEST(Environment, UnknownNamesAreRefusedWithTheNearestKnownOne) {
  EXPECT_TRUE(
      says(refusal(train(), {"SHARDTUNE_LORA_RANK=4"}), {"environment variable SHARDTUNE_LORA_RANK", "lora_r"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_MAX_SEQ_LENGTH=4"}), {"SHARDTUNE_MAX_SEQ_LENGTH", "'max_length'"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_seed=4"}), {"SHARDTUNE_seed", "SHARDTUNE_SEED"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_="}), {"environment variable SHARDTUNE_"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_HELP=1"}), {"SHARDTUNE_HELP", "not allowed"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_SEED=1", "SHARDTUNE_SEED=2"}), {"seed", "twice"}));
}

TEST(Environment, VariablesOfToolsAndOthersAreLeftAlone) {
  const auto result = run(
      train(), {"SHARDTUNE_LIBTORCH=/x", "SHARDTUNE_LIBTORCH_CUDA=/x", "SHARDTUNE_CACHE=/x", "SHARDTUNE_TEST_DATA=/x",
                "SHARDTUNE_TEST_RANKS=2", "SHARDTUNE_BINARY=/x", "SHARDTUNE_DEMO_MODEL=/x", "SHARDTUNE_SKIP_PACKAGES=1",
                "SHARDTUNE_MATRIX=all", "SEED=9", "shardtune_seed=9", "PATH=/bin"});
  EXPECT_EQ(result.options.data.seed, 42u);
  // Only the pattern with a star covers longer names.
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_CACHE_DIR=/x"}), {"SHARDTUNE_CACHE_DIR"}));
}

TEST(Environment, NoneAtAllIsFine) {
  const Strings words = train();
  std::vector<const char*> argv = {"shardtune"};
  for (const auto& word : words) argv.push_back(word.c_str());
  EXPECT_EQ(parse_options(static_cast<int>(argv.size()), argv.data(), nullptr).options.command, "train");
}

TEST(Effective, ListsEveryOptionOnceWithAValueThatParsesBack) {
  const auto first =
      run(train({"--use_peft_lora", "--learning_rate", "0.30000000000000004", "--seed", "18446744073709551615",
                 "--packing", "--packing_strategy", "wrapped", "--eval_strategy", "steps", "--save_strategy", "steps",
                 "--resume_from_checkpoint", "--use_4bit_quantization", "--loraplus_lr_ratio", "16"}));
  std::set<std::string> names;
  Strings again = {"train"};
  for (const auto& option : first.effective) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    if (!option.value.empty()) again.push_back(fmt::format("--{}={}", option.name, option.value));
  }
  const auto second = run(again);
  ASSERT_EQ(first.effective.size(), second.effective.size());
  for (std::size_t i = 0; i < first.effective.size(); ++i)
    EXPECT_EQ(first.effective[i].value, second.effective[i].value);
  EXPECT_EQ(second.options.optim.learning_rate, 0.30000000000000004);
  EXPECT_EQ(second.options.data.seed, 18446744073709551615ULL);
}

// Every option of the page is there: an option that the list forgets could not be compared at resume.
TEST(Effective, DefaultsAreThoseOfTheStructs) {
  const auto result = run(train());
  EXPECT_EQ(effective(result, "learning_rate").value, "2e-05");
  EXPECT_EQ(effective(result, "adam_beta2").value, "0.999");
  EXPECT_EQ(effective(result, "gradient_checkpointing").value, "True");
  EXPECT_EQ(effective(result, "use_peft_lora").value, "False");
  EXPECT_EQ(effective(result, "max_steps").value, "-1");
  EXPECT_EQ(effective(result, "num_train_epochs").value, "3");
  EXPECT_EQ(effective(result, "resume_from_checkpoint").value, "");
  EXPECT_EQ(effective(result, "output_dir"), (EffectiveOption{"output_dir", "o", "command line"}));
}

TEST(Effective, BannerIsAlignedAndComplete) {
  const std::string text = format_effective({{"a", "1", "default"}, {"long_name", "", "config x.ini"}});
  EXPECT_EQ(text, "  a          1  (default)\n  long_name  -  (config x.ini)\n");
  EXPECT_EQ(format_effective({}), "");
}

TEST(Effective, ADefaultThatSaysNothingIsToldInWords) {
  const std::string text = format_effective(run(train()).effective);
  const auto begin = text.find("  gradient_checkpointing ");
  EXPECT_TRUE(says(text.substr(begin, text.find('\n', begin) - begin), {"as activation_policy says", "(default)"}));
  EXPECT_TRUE(says(format_effective({{"gradient_checkpointing", "True", "command line"}}), {"True", "(command line)"}));
}

TEST(Effective, JsonKeepsOrderAndTexts) {
  const std::string text =
      effective_as_json({{"z", "18446744073709551615", "default"}, {"a", "say \"hi\" \xC3\xA9", "command line"}});
  const auto json = nlohmann::ordered_json::parse(text);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json.begin().key(), "z");
  EXPECT_EQ(json["z"]["value"], "18446744073709551615");
  EXPECT_EQ(json["a"]["value"], "say \"hi\" \xC3\xA9");
  EXPECT_EQ(json["a"]["source"], "command line");
}

TEST(Effective, IniTextIsReadBackAsTheSameOptions) {
  const auto given = run({"plan", "--model_name_or_path", "a folder#1;2", "--use_peft_lora", "--lora_dropout", "0.1",
                          "--adapter_name_or_path", "", "--world_size", "4", "--plan_device", "cpu"});
  const std::string text = effective_as_ini(given.effective);
  EXPECT_EQ(text.find("world_size"), std::string::npos) << text;
  EXPECT_EQ(text.find("plan_device"), std::string::npos) << text;
  const TemporaryFile file(text);
  const auto read = run({"plan", "--config", file.path()});
  for (const auto& option : given.effective) {
    if (option.name == "world_size" || option.name == "plan_device" || option.name == "config") continue;
    EXPECT_EQ(effective(read, option.name).value, option.value);
    EXPECT_EQ(effective(read, option.name).source == "default", option.source == "default") << option.name;
  }
}

TEST(Effective, WhatNoIniFileCanHoldIsSaid) {
  for (const char* value : {"a #b", "a ;b", "#a", "\"a", " a", "a "}) {
    const std::string text = effective_as_ini({{"output_dir", value, "command line"}});
    EXPECT_EQ(text, "# output_dir: no INI file can hold its value; give it on the command line\n") << value;
  }
}

}  // namespace
}  // namespace shardtune::options::test
