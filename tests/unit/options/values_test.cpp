#include <cmath>

#include "support.h"

// Values: what each kind accepts, what it refuses, and that a refusal names option, value and what is allowed.
namespace shardtune::options::test {
namespace {

struct Case {
  std::string name;
  std::string value;
};

/// Prerequisites, so that only the value under test can be the reason.
Strings with(const Case& test) {
  Strings more = {fmt::format("--{}={}", test.name, test.value)};
  if (test.name.starts_with("lora_") || test.name == "use_rslora") more.push_back("--use_peft_lora");
  if (test.name == "eval_steps") more.push_back("--eval_strategy=steps");
  if (test.name == "save_steps" || test.name == "save_total_limit") more.push_back("--save_strategy=steps");
  if (test.name == "packing_strategy") more.push_back("--packing");
  if (test.name == "wrapped_attention") more.insert(more.end(), {"--packing", "--packing_strategy=wrapped"});
  return train(more);
}

void expect_refused(const Case& test) {
  EXPECT_TRUE(says(refusal(with(test)), {"command line", "option " + test.name, "'" + test.value + "'", "expected"}));
}

TEST(Values, IntegersAreReadWholeOrRefused) {
  for (const char* value : {"eight", "8.0", "8.5", "1e3", "+8", " 8", "8 ", "8x", "0x8", "1,000", "1_000", "nan", "inf",
                            "--8", "99999999999999999999999999", "-99999999999999999999999999"})
    expect_refused({"lora_r", value});
}

TEST(Values, IntegersKeepToTheirRange) {
  const std::vector<Case> refused = {{"lora_r", "0"},
                                     {"lora_r", "65537"},
                                     {"lora_r", "-1"},
                                     {"lora_r", "4294967304"},
                                     {"max_length", "1"},
                                     {"max_length", "0"},
                                     {"max_length", "-256"},
                                     {"max_length", "16777217"},
                                     {"max_steps", "0"},
                                     {"max_steps", "-2"},
                                     {"max_steps", "1000000001"},
                                     {"per_device_train_batch_size", "0"},
                                     {"per_device_eval_batch_size", "0"},
                                     {"per_device_train_batch_size", "65537"},
                                     {"gradient_accumulation_steps", "0"},
                                     {"gradient_accumulation_steps", "-1"},
                                     {"logging_steps", "0"},
                                     {"logging_steps", "0.1"},
                                     {"eval_steps", "-1"},
                                     {"eval_steps", "0.5"},
                                     {"save_steps", "0"},
                                     {"save_steps", "-5"},
                                     {"save_total_limit", "-1"},
                                     {"seed", "-1"},
                                     {"seed", "18446744073709551616"}};
  for (const Case& test : refused) expect_refused(test);
  EXPECT_EQ(run(with({"lora_r", "1"})).options.adapter.lora_r, 1);
  EXPECT_EQ(run(with({"lora_r", "65536"})).options.adapter.lora_r, 65536);
  EXPECT_EQ(run(with({"max_length", "2"})).options.data.max_length, 2);
  EXPECT_EQ(run(with({"max_steps", "1"})).options.train.max_steps, 1);
  EXPECT_EQ(run(with({"eval_steps", "0"})).options.train.eval_steps, 0);
  EXPECT_EQ(run(with({"seed", "18446744073709551615"})).options.data.seed, 18446744073709551615ULL);
}

TEST(Values, NumbersAreFiniteAndInRange) {
  for (const char* value : {"nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e400", "1e-400", "0", "-1e-4", "fast",
                            "1e-4x", " 1e-4", "1e-4 ", "+1e-4", "1,5", "0x1p-3", "1e", ""}) {
    if (*value) expect_refused({"learning_rate", value});
    else EXPECT_TRUE(says(refusal(train({"--learning_rate", value})), {"learning_rate", "''"}));
  }
  const std::vector<Case> refused = {{"lora_dropout", "1"},      {"lora_dropout", "1.5"},    {"lora_dropout", "-0.1"},
                                     {"lora_alpha", "0"},        {"lora_alpha", "-16"},      {"weight_decay", "-1"},
                                     {"max_grad_norm", "-1"},    {"adam_beta1", "1"},        {"adam_beta2", "1"},
                                     {"adam_beta1", "-0.9"},     {"adam_epsilon", "0"},      {"warmup_steps", "-1"},
                                     {"warmup_steps", "1.5"},    {"warmup_steps", "2e9"},    {"num_train_epochs", "0"},
                                     {"num_train_epochs", "-3"}, {"num_train_epochs", "1e7"}};
  for (const Case& test : refused) expect_refused(test);
}

TEST(Values, NumbersKeepToWhatFp32Holds) {
  // Each of these is a fine fp64 number and 0, infinite or 1 in the fp32 that the optimizer computes in.
  const std::vector<std::pair<Case, std::string>> refused = {
      {{"max_grad_norm", "1e-300"}, "0 or a finite number from 1e-10"},
      {{"max_grad_norm", "1e-11"}, "to 1e+30"},
      {{"max_grad_norm", "1e39"}, "to 1e+30"},
      {{"learning_rate", "1e-300"}, "from 1e-30 to 1e+30"},
      {{"learning_rate", "1e300"}, "from 1e-30 to 1e+30"},
      {{"adam_epsilon", "1e-46"}, "from 1e-30"},
      {{"adam_epsilon", "1e39"}, "to 1e+30"},
      {{"weight_decay", "1e39"}, "from 0 to 1000000"},
      {{"lora_alpha", "1e-46"}, "from 1e-06 to 1000000"},
      {{"lora_alpha", "1e39"}, "from 1e-06 to 1000000"},
      {{"lora_dropout", "0.99999999"}, "from 0 to 0.999999"}};
  for (const auto& [test, range] : refused) {
    expect_refused(test);
    EXPECT_TRUE(says(refusal(with(test)), {range}));
  }
  for (const char* name : {"learning_rate", "weight_decay", "max_grad_norm", "adam_epsilon", "lora_alpha"})
    for (const char* value : {"inf", "-inf", "nan", "0x1p-3", "1e-400", "1e400"}) expect_refused({name, value});
  for (const Case& test : {Case{"learning_rate", "1e-30"},
                           {"learning_rate", "1e30"},
                           {"weight_decay", "0"},
                           {"max_grad_norm", "1e-10"},
                           {"adam_epsilon", "1e-30"},
                           {"lora_alpha", "1e6"}})
    EXPECT_NO_THROW(run(with(test))) << test.name << " " << test.value;
}

TEST(Values, NumbersAreReadExactly) {
  EXPECT_EQ(run(train({"--learning_rate", "1e-3"})).options.optim.learning_rate, 1e-3);
  EXPECT_EQ(run(train({"--learning_rate", "0.1"})).options.optim.learning_rate, 0.1);
  EXPECT_EQ(run(train({"--learning_rate", ".5"})).options.optim.learning_rate, 0.5);
  EXPECT_EQ(run(train({"--learning_rate", "3"})).options.optim.learning_rate, 3.0);
  EXPECT_EQ(run(with({"lora_dropout", "0"})).options.adapter.lora_dropout, 0.0);
  EXPECT_EQ(run(train({"--adam_beta2", "0.9999999999999999"})).options.optim.adam_beta2, std::nextafter(1.0, 0.0));
  EXPECT_EQ(run(train({"--max_grad_norm", "0"})).options.optim.max_grad_norm, 0.0);
  EXPECT_EQ(run(train({"--warmup_steps", "0.03"})).options.optim.warmup_steps, 0.03);
  EXPECT_EQ(run(train({"--warmup_steps", "1e2"})).options.optim.warmup_steps, 100.0);
  EXPECT_EQ(run(train({"--num_train_epochs", "0.5"})).options.train.num_train_epochs, 0.5);
}

TEST(Values, ChoicesNameWhatIsAllowed) {
  const std::vector<std::pair<Case, Strings>> cases = {
      {{"dtype", "float16"}, {"auto, float32 or bfloat16"}},
      {{"dtype", "Float32"}, {"did you mean 'float32'"}},
      {{"packing_strategy", "bfd-requeue"}, {"bfd, bfd_split or wrapped"}},
      {{"wrapped_attention", "document"}, {"row or documents", "did you mean 'documents'"}},
      {{"lr_scheduler_type", "cosin"}, {"linear, cosine, constant or constant_with_warmup", "did you mean 'cosine'"}},
      {{"eval_strategy", "epochs"}, {"no, steps or epoch", "did you mean 'epoch'"}},
      {{"save_strategy", "best"}, {"no, steps or epoch"}},
      {{"chat_template_format", "none"}, {"tokenizer or chatml"}},
      {{"dtype", "bf16"}, {"did you mean 'bfloat16'?"}},
      {{"dtype", "fp32"}, {"did you mean 'float32'?"}},
      {{"mixed_precision", "bfloat16"}, {"did you mean 'bf16'?"}},
      {{"save_strategy", "never"}, {"did you mean 'no'?"}},
      {{"save_strategy", "False"}, {"did you mean 'no'?"}},
  };
  for (const auto& [test, parts] : cases) {
    expect_refused(test);
    EXPECT_TRUE(says(refusal(with(test)), parts));
  }
}

TEST(Values, NoHintLeadsToAnotherMeaning) {
  EXPECT_EQ(refusal(train({"--dtype", "float16"})).find("did you mean"), std::string::npos);
  EXPECT_TRUE(says(refusal({"plan", "--model_name_or_path", "m", "--plan_device", "gpu"}), {"did you mean 'cuda'?"}));
}

TEST(Values, TrueAndFalseInAListHaveEverySpelling) {
  for (const char* value : {"True", "true", "1", "yes"})
    EXPECT_EQ(run(train({"--share_base_on_node", value})).options.fsdp.share_base_on_node, "true");
  for (const char* value : {"False", "false", "0", "no"})
    EXPECT_EQ(run(train({"--share_base_on_node", value})).options.fsdp.share_base_on_node, "false");
  EXPECT_TRUE(says(refusal(train({"--share_base_on_node", "maybe"})), {"auto, true or false"}));
}

TEST(Values, EveryChoiceIsAccepted) {
  for (const char* value : {"auto", "float32", "bfloat16"})
    EXPECT_EQ(run(train({"--dtype", value})).options.model.dtype, value);
  for (const char* value : {"linear", "cosine", "constant", "constant_with_warmup"})
    EXPECT_EQ(run(train({"--lr_scheduler_type", value})).options.optim.lr_scheduler_type, value);
  for (const char* value : {"no", "steps", "epoch"}) {
    EXPECT_EQ(run(train({"--eval_strategy", value})).options.train.eval_strategy, value);
    EXPECT_EQ(run(train({"--save_strategy", value})).options.train.save_strategy, value);
  }
  for (const char* value : {"row", "documents"})
    EXPECT_EQ(run(with({"wrapped_attention", value})).options.data.wrapped_attention, value);
  for (const char* value : {"bfd", "bfd_split", "wrapped"})
    EXPECT_EQ(run(with({"packing_strategy", value})).options.data.packing_strategy, value);
  for (const char* value : {"tokenizer", "chatml"})
    EXPECT_EQ(run(train({"--chat_template_format", value})).options.data.chat_template_format, value);
}

TEST(Values, TextsAreKeptAsWritten) {
  EXPECT_EQ(run(with({"lora_target_modules", "q_proj, v_proj"})).options.adapter.lora_target_modules, "q_proj, v_proj");
  const std::string pattern = R"(.*layers\.[01]\.mlp.*_proj)";
  EXPECT_EQ(run(with({"lora_target_modules", pattern})).options.adapter.lora_target_modules, pattern);
  EXPECT_EQ(run(train({"--dataset_text_field", "t\xC3\xA9xt"})).options.data.dataset_text_field, "t\xC3\xA9xt");
  EXPECT_TRUE(says(refusal(train({"--dataset_text_field", ""})), {"dataset_text_field", "''"}));
  EXPECT_TRUE(says(refusal({"train", "--model_name_or_path", ""}), {"model_name_or_path", "not empty"}));
  EXPECT_TRUE(says(refusal(train({"--dataset_test_split", "a\nb"})), {"dataset_test_split", "a\\nb"}));
  EXPECT_TRUE(says(refusal(train({"--dataset_test_split", "\xff"})), {"dataset_test_split", "\\xff"}));
}

TEST(Values, TextsThatJsonCannotHoldAreRefused) {
  // Cut off; longer than needed; half a surrogate pair; above the last code point.
  for (const char* bytes :
       {"a\xC3", "\xC0\xAF", "\xE0\x80\xAF", "\xF0\x80\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80"})
    for (const char* name : {"output_dir", "model_name_or_path", "dataset_name", "resume_from_checkpoint"}) {
      Strings arguments = {"train"};
      for (const char* required : {"model_name_or_path", "dataset_name", "output_dir"})
        if (std::string(required) != name) arguments.push_back(fmt::format("--{}=x", required));
      arguments.push_back(fmt::format("--{}={}", name, bytes));
      EXPECT_TRUE(says(refusal(arguments), {fmt::format("option {}:", name), "is not allowed"}));
    }
  EXPECT_NO_THROW(effective_as_json(run(train({"--dataset_test_split", "\xF4\x8F\xBF\xBF"})).effective));
}

}  // namespace
}  // namespace shardtune::options::test
