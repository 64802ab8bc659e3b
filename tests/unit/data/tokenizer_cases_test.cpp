// The acceptance cases about token ids. Expected ids: Hugging Face tokenizers 0.23.3.
#include <algorithm>

#include "support.h"

namespace shardtune::data::testing {
namespace {

void expect_all_ids(const Tokenizer& tokenizer, const nlohmann::json& expected) {
  ASSERT_FALSE(expected.empty());
  for (const nlohmann::json& entry : expected) {
    const std::string text = entry["text"];
    const Ids ids = tokenizer.encode(text, false);
    EXPECT_EQ(ids, entry["ids"].get<Ids>()) << text;
    if (entry.contains("ids_with_bos")) {
      EXPECT_EQ(tokenizer.encode(text, true), entry["ids_with_bos"].get<Ids>()) << text;
    }
    if (entry.contains("decoded")) {
      EXPECT_EQ(tokenizer.decode(ids), entry["decoded"].get<std::string>());
    }
  }
}

TEST(CaseA09, IdsAndRoundTripOfDifficultStrings) {
  const nlohmann::json expected = read_json(cases() / "tok-bpe-expected.json");
  ASSERT_EQ(expected.size(), 14u);
  expect_all_ids(Tokenizer::load(cases() / "tok-bpe"), expected);
}

TEST(CaseA09, AddedTokensWithStripAndWholeWordFlags) {
  const nlohmann::json expected = read_json(cases() / "tok-bpe-added-expected.json");
  ASSERT_EQ(expected.size(), 10u);
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe-added");
  EXPECT_EQ(tokenizer.vocabulary_size(), 517);
  expect_all_ids(tokenizer, expected);
  for (const nlohmann::json& entry : expected)
    for (std::size_t i = 0; i < entry["ids"].size(); ++i)
      EXPECT_EQ(tokenizer.id_of(entry["tokens"][i].get<std::string>()), entry["ids"][i].get<std::int32_t>());
}

TEST(CaseA10, BothSpellingsOfMergesGiveTheSameIds) {
  const nlohmann::json expected = read_json(cases() / "tok-bpe-expected.json");
  Files files(cases() / "tok-bpe-merges-str");
  ASSERT_TRUE(files.tokenizer["model"]["merges"][0].is_string());
  ASSERT_TRUE(Files(cases() / "tok-bpe").tokenizer["model"]["merges"][0].is_array());
  expect_all_ids(files.load(), expected);
}

TEST(CaseA10, EntryInNeitherFormIsAnErrorWithItsNumber) {
  for (const nlohmann::json& bad :
       {nlohmann::json("he"), nlohmann::json("h e r"), nlohmann::json::array({"h"}),
        nlohmann::json::array({"h", "e", "r"}), nlohmann::json(7), nlohmann::json::array({"h", 7}),
        nlohmann::json(nullptr), nlohmann::json::object()}) {
    Files files(cases() / "tok-bpe");
    files.tokenizer["model"]["merges"][41] = bad;
    expect_error(ErrorClass::kBadModel, {"tokenizer.json", "merges entry 42"}, [&] { files.load(); });
  }
  Files files(cases() / "tok-bpe");
  files.tokenizer["model"]["merges"][41] = {"h", "nosuchpiece"};
  expect_error(ErrorClass::kBadModel, {"merges entry 42", "nosuchpiece", "not in the vocabulary"},
               [&] { files.load(); });
}

TEST(CaseA10, EmptyMergeTableIsRefusedWhenThereAreMergedPieces) {
  Files files(cases() / "tok-bpe");
  files.tokenizer["model"]["merges"] = nlohmann::json::array();
  expect_error(ErrorClass::kBadModel, {"merges is empty", "merged pieces"}, [&] { files.load(); });
  // Bytes alone need no merges.
  const nlohmann::json vocabulary = files.tokenizer["model"]["vocab"];
  for (const auto& [piece, id] : vocabulary.items())
    if (id.get<int>() >= 256) files.tokenizer["model"]["vocab"].erase(piece);
  std::int32_t next = 256;
  for (auto& token : files.tokenizer["added_tokens"]) token["id"] = next++;
  files.tokenizer["post_processor"] = nullptr;
  const Tokenizer bytes = files.load();
  EXPECT_EQ(bytes.encode("héllo", false).size(), 6u);
}

TEST(CaseA04, RenderedConversationHasOneBeginningOfText) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  for (const nlohmann::json& entry : read_json(cases() / "chat-expected.json")) {
    const Ids ids = tokenizer.encode(entry["rendered"].get<std::string>(), false);
    EXPECT_EQ(ids, entry["ids"].get<Ids>());
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 506), 1);
  }
}

TEST(CaseA05, PadTokenMayEqualEndToken) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-pad-is-eos");
  EXPECT_EQ(tokenizer.pad_id(), 510);
  EXPECT_EQ(tokenizer.eos_id(), 510);
  const Tokenizer other = Tokenizer::load(cases() / "tok-bpe");
  EXPECT_EQ(other.pad_id(), 511);
  EXPECT_EQ(other.bos_id(), 506);
  EXPECT_EQ(other.eos_token(), "<|eot_id|>");
}

TEST(Tokenizer, TinyModelSpecialTokens) {
  const Tokenizer tokenizer = Tokenizer::load(tiny_model());
  EXPECT_EQ(tokenizer.vocabulary_size(), 512);
  EXPECT_EQ(tokenizer.bos_token(), "");
  EXPECT_FALSE(tokenizer.bos_id().has_value());
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.encode("<|im_start|><|im_end|>", true), (Ids{1, 2}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 2}), "<|im_start|><|im_end|>");
  EXPECT_EQ(tokenizer.decode(Ids{1, 2}, true), "");
  EXPECT_EQ(tokenizer.decode(Ids{512, 100000}), "");
  expect_error(ErrorClass::kBadData, {"-1"}, [&] { tokenizer.decode(Ids{-1}); });
}

}  // namespace
}  // namespace shardtune::data::testing
