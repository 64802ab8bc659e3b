#include <gtest/gtest.h>

#include <array>

#include "shardtune/core/dtype.h"
#include "shardtune/core/error.h"

namespace shardtune {
namespace {

TEST(Error, UsageExitsWithTwoAndEverythingElseWithOne) {
  EXPECT_EQ(Error(ErrorClass::kUsage, "x").exit_code(), 2);
  for (const ErrorClass c : {ErrorClass::kBadModel, ErrorClass::kBadData, ErrorClass::kBadStorage,
                             ErrorClass::kBadCheckpoint, ErrorClass::kBadNode, ErrorClass::kOutOfMemory,
                             ErrorClass::kNonFinite, ErrorClass::kCommunication, ErrorClass::kInternal})
    EXPECT_EQ(Error(c, "x").exit_code(), 1) << error_class_name(c);
}

TEST(Error, MessagesAreOneLineWithoutControlCharacters) {
  EXPECT_STREQ(Error(ErrorClass::kBadData, "a\nb\tc\rd\x1b[0m").what(), "a\\nb\\tc\\rd\\x1b[0m");
  EXPECT_EQ(escape_control("Zürich 东京 🙂"), "Zürich 东京 🙂");
  EXPECT_EQ(escape_control("\xff|\xc3"), "\\xff|\\xc3");
  // RFC 3629: overlong forms, surrogates and what lies above U+10FFFF are no UTF-8; their neighbours are.
  EXPECT_EQ(escape_control("\xe0\x9f\xbf"), "\\xe0\\x9f\\xbf");
  EXPECT_EQ(escape_control("\xf0\x8f\xbf\xbf"), "\\xf0\\x8f\\xbf\\xbf");
  EXPECT_EQ(escape_control("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(escape_control("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(escape_control("\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"),
            "\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
  EXPECT_EQ(escape_control(std::string("a\0b", 3)), "a\\x00b");
}

TEST(Error, NearestName) {
  const std::array<std::string, 3> names = {"learning_rate", "lora_r", "lora_alpha"};
  EXPECT_EQ(nearest_name("lerning_rate", names), "learning_rate");
  EXPECT_EQ(nearest_name("LORA_ALPHA", names), "lora_alpha");
  EXPECT_EQ(nearest_name("completely_else", names), "");
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Error, FailedCheckNamesThePlace) {
  try {
    SHARDTUNE_CHECK(1 == 2, "numbers {} and {}", 1, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kInternal);
    EXPECT_NE(std::string(error.what()).find("error_test.cpp"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("numbers 1 and 2"), std::string::npos);
  }
}

TEST(Dtype, NamesAndSizes) {
  EXPECT_EQ(dtype_from_name("BF16"), Dtype::kBF16);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
  for (const auto& [name, bytes] :
       {std::pair{"BOOL", 1u}, {"U8", 1u}, {"F8_E4M3", 1u}, {"F16", 2u}, {"BF16", 2u}, {"F32", 4u}, {"I64", 8u}})
    EXPECT_EQ(dtype_bytes(dtype_from_name(name).value()), bytes) << name;
}

}  // namespace
}  // namespace shardtune
