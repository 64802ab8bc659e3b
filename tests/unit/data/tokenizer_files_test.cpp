// What of tokenizer.json and tokenizer_config.json is followed, and what is refused by name.
#include <functional>

#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

struct Refusal {
  const char* name;
  std::function<void(Files&)> change;
  std::vector<std::string> message;
};

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> list = {
      {"normalizer",
       [](Files& f) {
         f.tokenizer["normalizer"] = {{"type", "NFKC"}};
       },
       {"normalizer NFKC"}},
      {"decoder",
       [](Files& f) {
         f.tokenizer["decoder"] = {{"type", "Metaspace"}};
       },
       {"decoder Metaspace"}},
      {"model kind", [](Files& f) { f.tokenizer["model"]["type"] = "Unigram"; }, {"Unigram"}},
      {"no model", [](Files& f) { f.tokenizer.erase("model"); }, {"'model' is missing"}},
      {"no merges", [](Files& f) { f.tokenizer["model"].erase("merges"); }, {"'merges' is missing"}},
      {"dropout", [](Files& f) { f.tokenizer["model"]["dropout"] = 0.1; }, {"dropout is 0.1"}},
      {"prefix",
       [](Files& f) { f.tokenizer["model"]["continuing_subword_prefix"] = "##"; },
       {"continuing_subword_prefix", "##"}},
      {"suffix", [](Files& f) { f.tokenizer["model"]["end_of_word_suffix"] = "</w>"; }, {"end_of_word_suffix", "</w>"}},
      {"byte fallback",
       [](Files& f) {
         f.tokenizer["model"]["byte_fallback"] = true;
         f.tokenizer["model"]["vocab"].erase("z");
         f.tokenizer["model"]["vocab"]["zz"] = 89;
       },
       {"byte_fallback"}},
      {"no pre-tokenizer", [](Files& f) { f.tokenizer["pre_tokenizer"] = nullptr; }, {"pre_tokenizer is null"}},
      {"pre-tokenizer kind",
       [](Files& f) {
         f.tokenizer["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       {"pre_tokenizer Metaspace"}},
      {"no ByteLevel",
       [](Files& f) {
         f.tokenizer["pre_tokenizer"] = {{"type", "Digits"}};
       },
       {"no ByteLevel"}},
      {"after ByteLevel",
       [](Files& f) {
         f.tokenizer["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
       },
       {"Digits", "after ByteLevel"}},
      {"split behaviour",
       [](Files& f) { f.tokenizer["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Scattered"; },
       {"behavior 'Scattered'"}},
      {"split pattern",
       [](Files& f) { f.tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\h+"; },
       {"'\\h'"}},
      {"post-processor kind",
       [](Files& f) {
         f.tokenizer["post_processor"] = {{"type", "RobertaProcessing"}};
       },
       {"RobertaProcessing"}},
      {"template without its token",
       [](Files& f) { f.tokenizer["post_processor"]["special_tokens"] = json::object(); },
       {"<|begin_of_text|>", "missing"}},
      {"template with two texts",
       [](Files& f) { f.tokenizer["post_processor"]["single"].push_back(f.tokenizer["post_processor"]["single"][1]); },
       {"2 times"}},
      {"id not an integer", [](Files& f) { f.tokenizer["model"]["vocab"]["!"] = 0.5; }, {"vocab '!'", "0.5"}},
      {"negative id", [](Files& f) { f.tokenizer["model"]["vocab"]["!"] = -1; }, {"vocab '!'", "-1"}},
      {"shared id", [](Files& f) { f.tokenizer["model"]["vocab"]["!"] = 1; }, {"share id 1"}},
      {"huge id", [](Files& f) { f.tokenizer["model"]["vocab"]["!"] = 2000000000; }, {"2000000000"}},
      {"added token over a piece",
       [](Files& f) { f.tokenizer["added_tokens"][0]["id"] = 5; },
       {"<|begin_of_text|>", "has id 5"}},
      {"hole in the added ids",
       [](Files& f) { f.tokenizer["added_tokens"][5]["id"] = 600; },
       {"<|pad|>", "600", "511"}},
      {"added token twice",
       [](Files& f) { f.tokenizer["added_tokens"][1]["content"] = "<|begin_of_text|>"; },
       {"added_tokens entry 2", "twice"}},
      {"unknown eos", [](Files& f) { f.config["eos_token"] = "<|end|>"; }, {"eos_token '<|end|>'"}},
      {"prefix space", [](Files& f) { f.config["add_prefix_space"] = true; }, {"add_prefix_space"}},
      {"bos wish", [](Files& f) { f.config["add_bos_token"] = false; }, {"add_bos_token"}},
      {"eos wish", [](Files& f) { f.config["add_eos_token"] = true; }, {"add_eos_token"}},
      {"flags of added tokens",
       [](Files& f) {
         f.config["added_tokens_decoder"]["506"] = {{"content", "<|begin_of_text|>"}, {"lstrip", true}};
       },
       {"flags", "<|begin_of_text|>"}},
      {"other added token",
       [](Files& f) {
         f.config["added_tokens_decoder"]["512"] = {{"content", "<x>"}};
       },
       {"'<x>'", "512"}},
  };
  return list;
}

TEST(TokenizerFiles, WhatCannotBeFollowedIsRefusedByName) {
  for (const Refusal& refusal : refusals()) {
    SCOPED_TRACE(refusal.name);
    Files files(cases() / "tok-bpe");
    refusal.change(files);
    expect_error(ErrorClass::kBadModel, refusal.message, [&] { files.load(); });
  }
}

TEST(TokenizerFiles, MissingAndDamagedFiles) {
  const TemporaryFolder folder;
  expect_error(ErrorClass::kBadModel, {"tokenizer.json", "no such file"}, [&] { Tokenizer::load(folder.path()); });
  folder.write("tokenizer.json", "{\"model\": ");
  expect_error(ErrorClass::kBadModel, {"tokenizer.json"}, [&] { Tokenizer::load(folder.path()); });
  folder.write("tokenizer.json", "[]");
  expect_error(ErrorClass::kBadModel, {"expected an object"}, [&] { Tokenizer::load(folder.path()); });
}

TEST(TokenizerFiles, HarmlessSettingsPass) {
  Files files(cases() / "tok-bpe");
  const Ids expected = files.load().encode("The third token.", true);
  json& model = files.tokenizer["model"];
  model["dropout"] = 0.0;
  model["continuing_subword_prefix"] = "";
  model["byte_fallback"] = true;  // every byte is in the vocabulary, so it never acts
  model["unk_token"] = "!";
  files.config["add_bos_token"] = true;
  files.config["eos_token"] = {{"content", "<|eot_id|>"}, {"special", true}};
  files.tokenizer["post_processor"] = {
      {"type", "Sequence"}, {"processors", json::array({{{"type", "ByteLevel"}}, files.tokenizer["post_processor"]})}};
  EXPECT_EQ(files.load().encode("The third token.", true), expected);
}

TEST(TokenizerFiles, TemplateMayAddTokensBehindTheText) {
  Files files(cases() / "tok-bpe");
  json& processor = files.tokenizer["post_processor"];
  processor["special_tokens"]["<|eot_id|>"] = {{"id", "<|eot_id|>"}, {"ids", {510}}, {"tokens", {"<|eot_id|>"}}};
  processor["single"].push_back({{"SpecialToken", {{"id", "<|eot_id|>"}, {"type_id", 0}}}});
  EXPECT_EQ(files.load().encode("x", true), (Ids{506, 87, 510}));
  EXPECT_EQ(files.load().encode("", true), (Ids{506, 510}));
  EXPECT_EQ(files.load().encode("", false), Ids{});
}

TEST(TokenizerFiles, ChatTemplateSources) {
  Files files(cases() / "tok-bpe");
  files.config["chat_template"] =
      json::array({{{"name", "tool_use"}, {"template", "a"}}, {{"name", "default"}, {"template", "b"}}});
  EXPECT_EQ(files.load().chat_template(), "b");
  const TemporaryFolder folder;
  folder.write("tokenizer.json", files.tokenizer.dump());
  EXPECT_EQ(Tokenizer::load(folder.path()).chat_template(), "");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_token(), "");
  folder.write("tokenizer_config.json", files.config.dump());
  folder.write("chat_template.jinja", "c");
  EXPECT_EQ(Tokenizer::load(folder.path()).chat_template(), "c");
}

}  // namespace
}  // namespace shardtune::data::testing
