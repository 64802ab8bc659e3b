#include "support.h"

// evaluate and generate: which options they have, and what they make of the file of a training run.
namespace shardtune::options::test {
namespace {

const Strings kEvaluate = {"evaluate", "--model_name_or_path", "m", "--dataset_name", "d"};
const Strings kGenerate = {"generate", "--model_name_or_path", "m", "--prompt", "Hi"};

Strings with(Strings all, const Strings& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Commands, WantWhatTheyNeed) {
  EXPECT_TRUE(says(refusal({"evaluate"}), {"required options missing: model_name_or_path, dataset_name"}));
  EXPECT_TRUE(says(refusal({"generate", "--prompt", "a"}), {"required option missing: model_name_or_path"}));
  EXPECT_EQ(run(kEvaluate).options.train.output_dir, "");
  EXPECT_TRUE(says(refusal({"generate", "--model_name_or_path", "m"}), {"nothing to continue", "prompts"}));
  EXPECT_TRUE(says(refusal({"generate", "--model_name_or_path", "m", "--prompt", ""}), {"nothing to continue"}));
  EXPECT_TRUE(says(refusal(with(kGenerate, {"--prompts", "f"})), {"prompt (command line)", "prompts (command line)"}));
}

TEST(Commands, RefuseWhatTheyDoNotHave) {
  EXPECT_TRUE(says(refusal(with(kEvaluate, {"--learning_rate", "1e-3"})),
                   {"command line: option learning_rate is for 'shardtune train', 'shardtune plan'", "'evaluate'"}));
  for (const Strings& given :
       std::vector<Strings>{{"--save_steps", "5"}, {"--lora_dropout", "0.1"}, {"--prompt", "a"}, {"--seed", "1"}})
    EXPECT_TRUE(says(refusal(with(kEvaluate, given)), {given[0].substr(2), "remove it from 'evaluate'"}));
  for (const Strings& given :
       std::vector<Strings>{{"--dataset_name", "d"}, {"--packing"}, {"--output_dir", "o"}, {"--world_size", "2"}})
    EXPECT_TRUE(says(refusal(with(kGenerate, given)), {given[0].substr(2), "remove it from 'generate'"}));
  EXPECT_TRUE(says(refusal(train({"--max_new_tokens", "3"})), {"max_new_tokens is for 'shardtune generate'"}));
  const TemporaryFile plan("model_name_or_path = m\ndataset_name = d\nworld_size = 4\n");
  EXPECT_TRUE(says(refusal({"evaluate", "--config", plan.path()}), {"world_size is for 'shardtune plan'"}));
}

TEST(Commands, TheFileOfATrainingRunServes) {
  const TemporaryFile file(
      "model_name_or_path = m\ndataset_name = d\noutput_dir = o\nuse_peft_lora = True\nlora_r = 4\nlora_dropout = 0.2\n"
      "learning_rate = 1e-3\nsave_strategy = steps\nsave_steps = 5\npacking = True\npacking_strategy = wrapped\nseed = "
      "7\n"
      "optim = sgd\nwarmup_steps = 3\nlr_scheduler_type = cosine\n");
  const ParseResult evaluate =
      run({"evaluate", "--config", file.path(), "--adapter_name_or_path", "a"}, {"SHARDTUNE_MAX_STEPS=5"});
  EXPECT_EQ(evaluate.options.adapter.lora_r, 4);
  EXPECT_EQ(evaluate.options.adapter.lora_dropout, 0.1) << "the default";
  EXPECT_EQ(evaluate.options.data.packing_strategy, "wrapped");
  EXPECT_EQ(evaluate.options.train.max_steps, -1);
  EXPECT_EQ(effective(evaluate, "learning_rate"),
            (EffectiveOption{"learning_rate", "1e-3", "config " + file.path() + ", without effect", false}));
  EXPECT_EQ(effective(evaluate, "max_steps").source, "environment, without effect");
  const ParseResult generate =
      run({"generate", "--config", file.path(), "--adapter_name_or_path", "a", "--prompt", "Hi"});
  EXPECT_EQ(generate.options.data.seed, 7u);
  EXPECT_EQ(generate.options.data.dataset_name, "");
  EXPECT_FALSE(generate.options.data.packing);
  // What neither the command has nor anybody gave is not listed.
  for (const EffectiveOption& option : run(kGenerate).effective) EXPECT_NE(option.name, "learning_rate");
}

TEST(Commands, AnAdapterTurnsLoraOn) {
  EXPECT_TRUE(run(with(kEvaluate, {"--adapter_name_or_path", "a"})).options.adapter.use_peft_lora);
  EXPECT_FALSE(run(kEvaluate).options.adapter.use_peft_lora);
  EXPECT_TRUE(says(refusal(with(kEvaluate, {"--use_peft_lora"})),
                   {"use_peft_lora = True: no adapter is named", "--use_peft_lora False"}));
  EXPECT_TRUE(says(refusal(with(kEvaluate, {"--use_peft_lora", "False", "--adapter_name_or_path", "a"})),
                   {"use_peft_lora is False"}));
  const TemporaryFile file("use_peft_lora = True\nadapter_name_or_path = a\n");
  EXPECT_FALSE(
      run(with(kGenerate, {"--config", file.path(), "--use_peft_lora", "False"})).options.adapter.use_peft_lora);
  EXPECT_TRUE(run(with(kEvaluate, {"--use_4bit_quantization"})).options.quant.use_4bit_quantization)
      << "without an adapter";
}

TEST(Commands, SamplingOptions) {
  for (const Strings& given : std::vector<Strings>{{"--temperature", "0.5"}, {"--top_p", "0.9"}, {"--top_k", "5"}}) {
    EXPECT_TRUE(says(refusal(with(kGenerate, given)), {given[0].substr(2), "does nothing while do_sample is False"}));
    EXPECT_NO_THROW(run(with(with(kGenerate, given), {"--do_sample"})));
  }
  for (const Strings& given : std::vector<Strings>{{"--temperature", "0"},
                                                   {"--temperature", "-1"},
                                                   {"--top_p", "0"},
                                                   {"--top_p", "1.5"},
                                                   {"--top_p", "-0.1"},
                                                   {"--top_k", "-1"},
                                                   {"--max_new_tokens", "0"}})
    EXPECT_TRUE(says(refusal(with(with(kGenerate, given), {"--do_sample"})),
                     {given[0].substr(2), "'" + given[1] + "'", "expected"}));
  EXPECT_EQ(run(with(kGenerate, {"--do_sample", "--top_p", "1"})).options.generate.top_p, 1);
}

}  // namespace
}  // namespace shardtune::options::test
