// Patterns from outside: whole matches, and an error instead of a crash or a wait.
#include "shardtune/core/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace shardtune {
namespace {

std::string compile_error(const std::string& pattern) {
  try {
    Regex::compile(pattern, "here", ErrorClass::kUsage);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Regex, MatchesWholeTexts) {
  const Regex regex = Regex::compile("a|ab", "here", ErrorClass::kUsage);
  EXPECT_TRUE(regex.matches_whole("a"));
  EXPECT_TRUE(regex.matches_whole("ab"));  // the first alternative fits too, but not to the end
  EXPECT_FALSE(regex.matches_whole("abc"));
  EXPECT_FALSE(regex.matches_whole("cab"));
  EXPECT_FALSE(regex.matches_whole(""));
  EXPECT_TRUE(regex.contains_match("cab"));
  EXPECT_FALSE(regex.can_match_empty());
  EXPECT_TRUE(Regex::compile("a*", "here", ErrorClass::kUsage).can_match_empty());
}

TEST(Regex, LengthAndNestingAreLimited) {
  for (const char* open : {"(", "(?:", "(?="}) {
    std::string nested;
    for (int i = 0; i < 20000; ++i) nested += open;
    EXPECT_THAT(compile_error(nested), ::testing::StartsWith("here: ")) << open;
  }
  EXPECT_THAT(compile_error(std::string(20000, '(') + "a" + std::string(20000, ')')),
              ::testing::AllOf(::testing::HasSubstr("cannot be compiled"), ::testing::SizeIs(::testing::Lt(500))));
  const std::string inside(Regex::kMaxNesting, '('), outside(Regex::kMaxNesting, ')');
  EXPECT_TRUE(Regex::compile(inside + "a" + outside, "here", ErrorClass::kUsage).matches_whole("a"));
  EXPECT_EQ(compile_error(std::string(1000, 'a')), "no error");
  EXPECT_THAT(compile_error(std::string(Regex::kMaxBytes + 1, 'a')), ::testing::HasSubstr("expected at most 65536"));
}

TEST(Regex, SearchesEnd) {
  const auto start = std::chrono::steady_clock::now();
  // The last letter fits nothing, and there are 2^39 ways to cut what stands before it into pieces.
  const Regex regex = Regex::compile("([a-z]+)+[0-9]", "here", ErrorClass::kBadModel);
  try {
    regex.matches_whole(std::string(40, 'a') + "!");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadModel);
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::StartsWith("here: "), ::testing::HasSubstr("limit")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace shardtune
