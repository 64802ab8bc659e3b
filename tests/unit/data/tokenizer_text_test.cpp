// Long and broken texts, bytes the vocabulary lacks, merges that may be skipped.
#include <ctime>
#include <functional>
#include <thread>

#include "support.h"

namespace shardtune::data::testing {
namespace {

/// Processor time, which other programs on the machine do not lengthen.
double seconds_of(const std::function<void()>& action) {
  const std::clock_t start = std::clock();
  action();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Takes tenths of a second; the bound is for unoptimised builds with sanitizers. Quadratic work would be 2 * 10^10 steps
// and more, minutes.
constexpr double kBoundSeconds = 15;

TEST(TokenizerText, LongWordsTakeNearLinearTime) {
  Files files(cases() / "tok-bpe");
  // Doubling merges "aa", "aaaa", ... so that many merges compete.
  std::string piece = "a";
  std::int32_t next = 506;
  for (auto& [name, id] : files.tokenizer["model"]["vocab"].items()) EXPECT_NE(name, "aa");
  for (int i = 0; i < 4; ++i) {
    files.tokenizer["model"]["merges"].push_back({piece, piece});
    piece += piece;
    files.tokenizer["model"]["vocab"][piece] = next++;
  }
  for (auto& token : files.tokenizer["added_tokens"]) token["id"] = next++;
  files.tokenizer["post_processor"] = nullptr;
  const Tokenizer tokenizer = files.load();
  Ids ids;
  EXPECT_LT(seconds_of([&] { ids = tokenizer.encode(std::string(200000, 'a'), false); }), kBoundSeconds);
  EXPECT_EQ(ids, Ids(200000 / 16, 509));

  std::string mixed;  // one word of 1 MB, letters of one and two bytes
  std::uint32_t state = 1;
  while (mixed.size() < 1000000) {
    state = state * 1664525u + 1013904223u;
    if ((state >> 24) % 7 == 0) mixed += "é";
    else mixed += static_cast<char>('a' + (state >> 16) % 26);
  }
  EXPECT_LT(seconds_of([&] { ids = tokenizer.encode(mixed, false); }), kBoundSeconds);
  EXPECT_EQ(tokenizer.decode(ids), mixed);
  const std::string spaces(1000000, ' ');
  EXPECT_LT(seconds_of([&] { ids = tokenizer.encode(spaces, false); }), kBoundSeconds);
  EXPECT_EQ(tokenizer.decode(ids), spaces);
}

TEST(TokenizerText, BrokenUtf8IsRefusedWithItsPlace) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  for (const std::string bad : {"\xC3", "\x80", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                "\xF8\x88\x80\x80\x80", "\xE2\x82"})
    expect_error(ErrorClass::kBadData, {"not UTF-8 at byte 3"}, [&] { tokenizer.encode("abc" + bad, false); });
}

TEST(TokenizerText, BytesOutsideTheVocabularyAreLeftOutOrUnknown) {
  Files files(tiny_model());
  const std::int32_t gone = files.tokenizer["model"]["vocab"]["z"];
  nlohmann::json& model = files.tokenizer["model"];
  model["vocab"].erase("z");
  model["vocab"]["<unused>"] = gone;  // keeps the ids without a hole
  const Ids ab = files.load().encode("q!", false);
  EXPECT_EQ(files.load().encode("zqz!z", false), ab);  // as the reference without an unknown token
  model["unk_token"] = "<|pad|>";
  EXPECT_EQ(files.load().encode("zz", false), (Ids{3, 3}));
  model["fuse_unk"] = true;
  EXPECT_EQ(files.load().encode("zz", false), (Ids{3}));
}

TEST(TokenizerText, WholeWordsCountWhenMergesAreIgnored) {
  Files files(cases() / "tok-bpe");
  const std::int32_t the = files.tokenizer["model"]["vocab"]["Ġthe"];
  nlohmann::json& merges = files.tokenizer["model"]["merges"];
  merges.erase(merges.begin() + 1, merges.end());
  EXPECT_GT(files.load().encode(" the", false).size(), 1u);
  files.tokenizer["model"]["ignore_merges"] = true;
  EXPECT_EQ(files.load().encode(" the", false), Ids{the});
}

// Words that were seen before come from a cache.
TEST(TokenizerText, RepeatedWordsKeepTheirIds) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  const std::string text =
      " scheduler sched scheduling schedul s scheduler " + std::string(100, 'w') + " " + std::string(65, 'w');
  const Ids first = tokenizer.encode(text, false);
  EXPECT_EQ(tokenizer.decode(first), text);
  EXPECT_EQ(tokenizer.encode(text, false), first);
}

TEST(TokenizerText, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i)
    texts.push_back("The scheduler waits " + std::to_string(i * 7919) + " rows" +
                    std::string(static_cast<std::size_t>(i % 9), 'q'));
  const Tokenizer other = Tokenizer::load(cases() / "tok-bpe");
  std::vector<Ids> alone;
  for (const std::string& text : texts) alone.push_back(other.encode(text, true));
  std::vector<std::vector<Ids>> found(4);
  std::vector<std::thread> threads;
  for (std::vector<Ids>& mine : found)
    threads.emplace_back([&] {
      for (const std::string& text : texts) mine.push_back(tokenizer.encode(text, true));
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Ids>& mine : found) EXPECT_EQ(mine, alone);
}

}  // namespace
}  // namespace shardtune::data::testing
