#include "support.h"

// The forms of the command line: sub-command, --name value, --name=value, flags, repeated and unknown names.
namespace shardtune::options::test {
namespace {

TEST(Command, ComesFirstAndMustBeKnown) {
  EXPECT_EQ(run(train()).options.command, "train");
  EXPECT_TRUE(says(refusal({}), {"no command", "train"}));
  EXPECT_TRUE(says(refusal({"trian"}), {"unknown command 'trian'", "known commands: train"}));
  for (const char* later : {"prepare", "checkpoint"})
    EXPECT_TRUE(says(refusal({later}), {std::string("unknown command '") + later + "'", "known commands: train"}));
  EXPECT_TRUE(says(refusal({"--lora_r", "4", "train"}), {"'--lora_r'", "known commands: train"}));
}

TEST(CommandLine, BothFormsGiveTheSame) {
  for (const auto& form : {Strings{"--max_length", "77"}, Strings{"--max_length=77"}})
    EXPECT_EQ(run(train(form)).options.data.max_length, 77);
  EXPECT_EQ(run(train({"--max_steps", "-1"})).options.train.max_steps, -1);
  EXPECT_EQ(run(train({"--max_steps=-1"})).options.train.max_steps, -1);
  // Only the first '=' separates.
  EXPECT_EQ(run(train({"--use_peft_lora", "--lora_target_modules=a=b"})).options.adapter.lora_target_modules, "a=b");
}

TEST(CommandLine, BooleanWordsAndTheBareFlag) {
  for (const char* word : {"True", "true", "1", "yes"}) {
    EXPECT_TRUE(run(train({"--packing", word})).options.data.packing) << word;
    EXPECT_TRUE(run(train({std::string("--packing=") + word})).options.data.packing) << word;
  }
  for (const char* word : {"False", "false", "0", "no"}) {
    EXPECT_FALSE(run(train({"--shuffle", word})).options.data.shuffle) << word;
    EXPECT_FALSE(run(train({std::string("--shuffle=") + word})).options.data.shuffle) << word;
  }
  EXPECT_TRUE(run(train({"--packing"})).options.data.packing);
  const auto between = run(train({"--packing", "--max_length", "9", "--eval_on_start"})).options;
  EXPECT_TRUE(between.data.packing);
  EXPECT_TRUE(between.train.eval_on_start);
  EXPECT_EQ(between.data.max_length, 9);
  EXPECT_TRUE(says(refusal(train({"--packing", "on"})), {"command line", "packing", "'on'", "True", "no"}));
  EXPECT_TRUE(says(refusal(train({"--packing=TRUE"})), {"packing", "'TRUE'"}));
  EXPECT_TRUE(says(refusal(train({"--packing", ""})), {"packing"}));
}

TEST(CommandLine, ResumeTakesAPathOrABooleanWord) {
  const auto resume = [](const Strings& form) { return run(train(form)).options.train.resume_from_checkpoint; };
  EXPECT_EQ(resume({}), "");
  EXPECT_EQ(resume({"--resume_from_checkpoint"}), "true");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "--packing"}), "true");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "True"}), "true");
  EXPECT_EQ(resume({"--resume_from_checkpoint=true"}), "true");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "False"}), "");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "runs/a/checkpoint-20"}), "runs/a/checkpoint-20");
  EXPECT_EQ(resume({"--resume_from_checkpoint", "./1"}), "./1");
}

TEST(CommandLine, MissingValuesAndStrayWordsAreRefused) {
  // The next option must not be swallowed as the value.
  EXPECT_TRUE(says(refusal({"train", "--output_dir", "--packing"}), {"output_dir", "has no value"}));
  EXPECT_TRUE(says(refusal({"train", "--output_dir", "--max_length", "8"}), {"output_dir", "has no value"}));
  EXPECT_TRUE(says(refusal(train({"--max_length"})), {"max_length"}));
  EXPECT_TRUE(says(refusal(train({"--max_length="})), {"max_length"}));
  EXPECT_TRUE(says(refusal(train({"file.ini"})), {"unexpected argument 'file.ini'", "--name"}));
  EXPECT_TRUE(says(refusal(train({"-h"})), {"unexpected argument '-h'"}));
  EXPECT_EQ(
      run({"train", "--model_name_or_path=--m", "--dataset_name=d", "--output_dir=o"}).options.model.model_name_or_path,
      "--m");
  EXPECT_TRUE(says(refusal(train({"--learning_rate", "-1e-4"})), {"learning_rate", "'-1e-4'"}));
  EXPECT_TRUE(says(refusal(train({"--packing", "True", "False"})), {"unexpected argument 'False'"}));
  EXPECT_TRUE(says(refusal(train({"--", "--packing"})), {"unexpected argument '--packing'"}));
}

TEST(CommandLine, UnknownNamesComeWithTheNearestKnownOne) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--lora_rank", "--lora_r"},
      {"--learning_rat", "--learning_rate"},
      {"--Lora_R", "--lora_r"},
      {"--max_seq_length", "--max_length"},
      {"--torch_dtype", "--dtype"},
      {"--evaluation_strategy", "--eval_strategy"},
      {"--warmup_ratio", "--warmup_steps"},
      {"--per_device_batch_size", "--per_device_eval_batch_size"},
      {"--gradient_acumulation_steps", "--gradient_accumulation_steps"},
  };
  for (const auto& [given, nearest] : cases) {
    EXPECT_TRUE(says(refusal(train({given, "1"})),
                     {"command line", fmt::format("unknown option '{}'", given), fmt::format("'{}'", nearest)}));
    EXPECT_TRUE(says(refusal(train({fmt::format("{}=1", given)})), {fmt::format("'{}'", nearest)}));
  }
  const std::string far = refusal(train({"--zzzzzzzzzzzzzzzzzz", "1"}));
  EXPECT_TRUE(says(far, {"unknown option '--zzzzzzzzzzzzzzzzzz'"}));
  EXPECT_EQ(far.find("nearest"), std::string::npos) << far;
}

TEST(CommandLine, NamesAreNeverAbbreviated) {
  for (const char* beginning : {"--learning", "--lora_drop", "--pack", "--conf"})
    EXPECT_TRUE(says(refusal(train({beginning, "1"})), {"unknown option", beginning}));
}

TEST(CommandLine, AnOptionGivenTwiceIsRefused) {
  EXPECT_TRUE(says(refusal(train({"--seed", "1", "--seed=2"})), {"seed", "twice", "'1'", "'2'"}));
  EXPECT_TRUE(says(refusal(train({"--packing", "--packing"})), {"packing", "twice"}));
  EXPECT_TRUE(says(refusal(train({"--seed", "1", "--seed", "1"})), {"seed", "twice"}));
}

TEST(CommandLine, ErrorsAreOneLine) {
  const std::string message = refusal(train({"--dtype", "a\nb\x01\xff"}));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(says(message, {"a\\nb\\x01\\xff"}));
}

}  // namespace
}  // namespace shardtune::options::test
