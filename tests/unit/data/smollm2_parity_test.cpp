// SmolLM2's own tokenizer, which set-up makes in the demo model folder; it is not stored here. Expected ids: Hugging Face
// tokenizers 0.23.3.
#include "shardtune/data/chat.h"
#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("SHARDTUNE_DEMO_MODEL");
    ASSERT_NE(folder, nullptr)
        << "SHARDTUNE_DEMO_MODEL is not set; it must name the SmolLM2 folder that tools/setup.sh makes";
    ASSERT_TRUE(std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json"))
        << folder << " (SHARDTUNE_DEMO_MODEL) holds no tokenizer.json; run tools/setup.sh";
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(folder));
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SmolLm2, IdsOfTheReferenceStrings) {
  const json reference = read_json(data_folder() / "tokenizers" / "smollm2_ids.json");
  ASSERT_EQ(reference.size(), 320u);
  for (const json& entry : reference) {
    const std::string text = entry[0];
    const Ids ids = tokenizer_->encode(text, true);
    EXPECT_EQ(ids, entry[1].get<Ids>()) << text;
    EXPECT_EQ(tokenizer_->decode(ids), text);
  }
}

TEST_F(SmolLm2, IdsOfTheReferenceConversations) {
  const json reference = read_json(data_folder() / "tokenizers" / "chat_templates.json");
  int compared = 0;
  for (const json& entry : reference["renderings"]) {
    if (!entry.contains("smollm2")) continue;
    EXPECT_EQ(tokenizer_->encode(entry["text"].get<std::string>(), false), entry["smollm2"].get<Ids>());
    ++compared;
  }
  EXPECT_EQ(compared, 40);
}

TEST_F(SmolLm2, OwnTemplateIsKnown) {
  const ChatRenderer renderer(*tokenizer_, "tokenizer");
  EXPECT_EQ(renderer.render({{"user", "Hi"}}, false),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_EQ(tokenizer_->vocabulary_size(), 49152);
  EXPECT_EQ(tokenizer_->eos_token(), "<|im_end|>");
}

}  // namespace
}  // namespace shardtune::data::testing
