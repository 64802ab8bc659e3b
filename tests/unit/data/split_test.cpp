// Split patterns and behaviours.
#include "data/pre_tokenizer.h"
#include "data/regex.h"
#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

std::vector<std::string> words_of(const json& steps, const std::string& text) {
  json parts = steps;
  parts.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  const Words words = PreTokenizer::from_json({{"type", "Sequence"}, {"pretokenizers", parts}}, "test").split(text);
  std::vector<std::string> out;
  for (const Span range : words.ranges) out.push_back(words.text.substr(range.begin, range.end - range.begin));
  return out;
}

json split(const char* behavior, bool invert = false) {
  return json::array({{{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}}});
}

using Texts = std::vector<std::string>;

// The example of the reference's documentation.
TEST(Split, Behaviours) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(words_of(split("Removed"), text), (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(words_of(split("Isolated"), text), (Texts{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(words_of(split("MergedWithPrevious"), text), (Texts{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(words_of(split("MergedWithNext"), text), (Texts{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(words_of(split("Contiguous"), text), (Texts{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(words_of(split("Removed", true), text), (Texts{"-", "-", "-"}));
  EXPECT_EQ(words_of(split("Isolated"), ""), Texts{});
}

TEST(Split, DigitsAloneOrTogether) {
  json step = json::array({{{"type", "Digits"}, {"individual_digits", true}}});
  EXPECT_EQ(words_of(step, "ab12½"), (Texts{"ab", "1", "2", "½"}));
  step[0]["individual_digits"] = false;
  EXPECT_EQ(words_of(step, "ab12½"), (Texts{"ab", "12½"}));
}

TEST(Split, PrefixSpaceOnlyWhereThereIsNone) {
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  const PreTokenizer pre_tokenizer = PreTokenizer::from_json(byte_level, "test");
  EXPECT_EQ(pre_tokenizer.split("one two").text, " one two");
  EXPECT_EQ(pre_tokenizer.split(" one two").text, " one two");
  EXPECT_EQ(pre_tokenizer.split("").text, "");
}

TEST(Pattern, WhiteSpaceIsUnicodes) {
  const Regex regex = tokenizer_regex("\\s+", "test");
  // Line separators and NEL are white space; the Mongolian vowel separator and the zero-width space are not.
  EXPECT_EQ(regex.find_all("a\u0085\u2028\u2029\u00A0\u3000\v\fb").size(), 1u);
  EXPECT_TRUE(regex.find_all("\u180E\u200B\uFEFF").empty());
  EXPECT_EQ(tokenizer_regex("\\S+", "test").find_all("\u180E").size(), 1u);
  EXPECT_EQ(tokenizer_regex("[^\\s\\p{L}]+", "test").find_all("a\u180E b").size(), 1u);
}

TEST(Pattern, WhatMayMeanSomethingElseIsRefused) {
  for (const char* bad : {"\\h",        "\\w+",     "\\bx",    "x\\b",         "\\R",    "^a",     "a$",    "(?m:a)",
                          "(?<name>a)", "\\p{Han}", "\\p{^L}", "(?i:\\p{Lu})", "[a[b]]", "[a&&b]", "[\\S]", "a{2}+",
                          "a{2}?",      "a{,3}",    "\\1",     "\\u12",        "[]a]",   "[\\w]",  "\\v",   "a\\"})
    expect_error(ErrorClass::kBadModel, {"test", "pattern"}, [&] { tokenizer_regex(bad, "test"); });
  expect_error(ErrorClass::kBadModel, {"test", "empty string"}, [] { tokenizer_regex("a*", "test"); });
  expect_error(ErrorClass::kBadModel, {"test", "cannot be compiled"}, [] { tokenizer_regex("(a", "test"); });
}

TEST(Pattern, UsualOnesPass) {
  for (const char* good :
       {R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        R"([\p{Lu}\p{Lt}]*[\p{Ll}\p{M}]++(?i:'d)?|\d+|x{2,})", R"([\u3040-\u30FF]+)", R"(a(?=b)|(?<=a)b|(?>c))"})
    EXPECT_NO_THROW(tokenizer_regex(good, "test")) << good;
}

}  // namespace
}  // namespace shardtune::data::testing
