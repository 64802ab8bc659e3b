// Patterns for target modules: Python's re.fullmatch, as in PEFT, and an error for what would crash or never end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "shardtune/adapters/lora.h"
#include "shardtune/core/error.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

using ::testing::HasSubstr;

model::ModelConfig config() { return model::read_config(case_folder() / "base-gqa"); }  // 2 layers

std::string refusal(const std::string& targets) {
  try {
    adapters::resolve_targets(targets, config());
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("--lora_target_modules"));
    return error.what();
  }
  return "no error";
}

TEST(TargetPatterns, MatchTheWholeName) {
  EXPECT_EQ(adapters::resolve_targets(R"(.*\.(q|v)_proj)", config()).size(), 4u);
  EXPECT_THAT(refusal("(q|v)_proj"), HasSubstr("full name"));  // a suffix, which only a plain name may be
  EXPECT_THAT(refusal(R"(model\.layers\.0)"), HasSubstr("matches no linear module"));  // a prefix
  EXPECT_EQ(adapters::resolve_targets(R"(lm_head|model\.layers\.0\.mlp\.up_proj)", config()).size(), 2u);
}

TEST(TargetPatterns, CommasBelongToThePattern) {
  EXPECT_EQ(adapters::resolve_targets(R"( model\.layers\.[0-9]{1,2}\.mlp\.up_proj )", config()).size(), 2u);
  EXPECT_EQ(adapters::resolve_targets("q_proj, v_proj", config()).size(), 4u);
}

TEST(TargetPatterns, WhatCannotBeReadIsRefused) {
  EXPECT_THAT(refusal("(q_proj"), HasSubstr("cannot be compiled at offset 7"));
  EXPECT_THAT(refusal("*q_proj"), HasSubstr("cannot be compiled"));
  EXPECT_THAT(refusal(std::string(20000, '(')), HasSubstr("cannot be compiled"));
  EXPECT_THAT(refusal(std::string(70000, '*')), HasSubstr("at most 65536"));
}

TEST(TargetPatterns, WhatPythonReadsOtherwiseIsRefused) {
  EXPECT_THAT(refusal(R"(.*\.[0-9]{,2}\..*)"), HasSubstr("'{0,'"));
  EXPECT_THAT(refusal("[[:alpha:]_.0-9]+"), HasSubstr("'[:' at byte 1"));
}

TEST(TargetPatterns, EndlessSearchesEnd) {
  const auto start = std::chrono::steady_clock::now();
  // 2^29 ways to cut model.layers.0.self_attn.q_proj into pieces, and none is followed by one of these letters.
  EXPECT_THAT(refusal("([a-z0-9_.]+)+[!?]"), HasSubstr("limit"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace shardtune::testing
