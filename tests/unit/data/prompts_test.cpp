// Prompts to be continued, and what ends their continuations.
#include "shardtune/data/prompts.h"

#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

class Prompts : public ::testing::Test {
 protected:
  std::vector<Prompt> read(const std::string& lines) const {
    return read_prompts(folder.write("prompts.jsonl", lines), options, tokenizer);
  }
  void expect_refused(const std::string& lines, const std::vector<std::string>& parts) const {
    expect_error(ErrorClass::kBadData, parts, [&] { read(lines); });
  }

  TemporaryFolder folder;
  DataOptions options;
  Tokenizer tokenizer = Tokenizer::load(tiny_model());
};

TEST_F(Prompts, TextsAndConversations) {
  const auto prompts = read(R"({"prompt": "Hi there", "id": 7}

{"messages": [{"role": "user", "content": "Hi"}]}
)");
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_FALSE(prompts[0].conversation);
  EXPECT_EQ(prompts[0].ids, tokenizer.encode("Hi there", true));
  EXPECT_EQ(json::parse(prompts[0].given), (json{{"prompt", "Hi there"}, {"id", 7}}));
  EXPECT_TRUE(prompts[1].conversation);
  EXPECT_EQ(prompts[1].ids, tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", false));
}

TEST_F(Prompts, RefusesWithTheLine) {
  const std::string good = R"({"prompt": "Hi"})"
                           "\n";
  expect_refused(good + R"({"promt": "Hi"})",
                 {"prompts.jsonl line 2", "field 'promt' is not known", "'prompt' or 'messages'"});
  expect_refused(good + R"({"id": 1})", {"line 2", "either 'prompt' or 'messages', found neither"});
  expect_refused(R"({"prompt": "a", "messages": [{"role": "user", "content": "b"}]})", {"line 1", "found both"});
  expect_refused(good + R"({"prompt": ""})", {"line 2", "the prompt is empty"});
  expect_refused(R"({"prompt": 5})", {"line 1", "'prompt' must be a string, found number"});
  expect_refused(R"(["Hi"])", {"line 1", "expected a JSON object, found array"});
  expect_refused(R"({"messages": []})", {"line 1", "at least one message"});
  expect_refused(R"({"messages": [{"role": "user"}]})", {"line 1: message 1", "'role' and 'content'"});
  expect_refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
                 {"line 1", "ends with the assistant's message"});
  expect_refused("\n\n", {"prompts.jsonl", "holds no prompt"});
  expect_error(ErrorClass::kBadData, {"missing.jsonl"},
               [&] { read_prompts(folder.path() / "missing.jsonl", options, tokenizer); });
  expect_error(ErrorClass::kBadData, {"--prompt", "empty"}, [&] { text_prompt("", tokenizer); });
}

TEST_F(Prompts, AnotherTemplateIsRefusedAndChatMlHelps) {
  Files files(tiny_model());
  files.config["chat_template"] = "{{ messages }}";
  tokenizer = files.load();
  const std::string lines = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  expect_error(ErrorClass::kBadModel, {"prompts.jsonl line 1", "--chat_template_format"}, [&] { read(lines); });
  options.chat_template_format = "chatml";
  EXPECT_EQ(read(lines).size(), 1u);
}

class EndIds : public Prompts {
 protected:
  std::vector<std::int32_t> of(const json& generation, const json& config) const {
    std::filesystem::remove(folder.path() / "generation_config.json");
    if (!generation.is_null()) folder.write("generation_config.json", generation.dump());
    folder.write("config.json", config.dump());
    return read_end_ids(folder.path(), tokenizer, 512);
  }
};

TEST_F(EndIds, TheFirstFileThatNamesOne) {
  using Ends = std::vector<std::int32_t>;
  EXPECT_EQ(of({{"eos_token_id", {3, 5}}}, {{"eos_token_id", 4}}), (Ends{3, 5}));
  EXPECT_EQ(of({{"eos_token_id", 0}}, {{"eos_token_id", 4}}), Ends{0});
  EXPECT_EQ(of({{"eos_token_id", nullptr}}, {{"eos_token_id", 4}}), Ends{4});
  EXPECT_EQ(of(nullptr, {{"eos_token_id", 4}}), Ends{4});
  EXPECT_EQ(of(nullptr, json::object()), Ends{2}) << "the tokenizer's <|im_end|>";
}

TEST_F(EndIds, RefusesNoneAndOddOnes) {
  const auto refused = [&](const json& generation, const std::vector<std::string>& parts) {
    expect_error(ErrorClass::kBadModel, parts, [&] { of(generation, json::object()); });
  };
  refused({{"eos_token_id", 512}}, {"generation_config.json", "512 is outside the model's vocabulary of 512 rows"});
  refused({{"eos_token_id", "2"}}, {"generation_config.json: eos_token_id", "must be an integer"});
  refused({{"eos_token_id", -1}}, {"must be an integer from 0"});
  refused(json::array(), {"generation_config.json: expected a JSON object, found array"});
  Files files(tiny_model());
  files.config.erase("eos_token");
  tokenizer = files.load();
  refused(nullptr, {"no token is known that ends a text", "generation_config.json"});
}

}  // namespace
}  // namespace shardtune::data::testing
