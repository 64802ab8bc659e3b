// Which formats there are, and how many bytes a matrix takes.
#include "shardtune/quant/format.h"

#include <gmock/gmock.h>

#include "shardtune/core/error.h"
#include "support.h"

namespace shardtune::quant {
namespace {

void expect_refused(const Format& format, const std::string& field) {
  try {
    check_format(format);
    ADD_FAILURE() << "taken: " << field;
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(field));
  }
}

TEST(Format, TakesWhatExists) {
  for (const std::int64_t block : {64, 128, 256, 512, 1024, 2048, 4096})
    for (const bool nested : {false, true})
      for (const Kind kind : {Kind::kNf4, Kind::kFp4}) EXPECT_NO_THROW(check_format({kind, nested, block}));
  EXPECT_NO_THROW(check_format(kInt8Format));
}

TEST(Format, RefusesByField) {
  for (const std::int64_t block : {-64, 0, 1, 32, 63, 96, 8192})
    expect_refused({Kind::kNf4, true, block}, "block_size");
  expect_refused({Kind::kInt8, true, 0}, "double_quantisation");
  expect_refused({Kind::kInt8, false, 64}, "block_size");
  expect_refused({static_cast<Kind>(7), false, 64}, "kind");
}

TEST(RecordLayout, BytesOfARecord) {
  const auto bytes = [](Kind kind, bool nested, std::int64_t block) {
    return RecordLayout({kind, nested, block}, 128, 256).bytes_per_record();
  };
  EXPECT_EQ(bytes(Kind::kNf4, true, 64), 8464);  // 16 + 256 + 8192
  EXPECT_EQ(bytes(Kind::kNf4, false, 64), 16 + 1024 + 8192);
  EXPECT_EQ(bytes(Kind::kFp4, true, 4096), 16 + 16 + 8192);  // 4 codes, padded
  EXPECT_EQ(bytes(Kind::kFp4, false, 4096), 16 + 16 + 8192);
  EXPECT_EQ(RecordLayout(kInt8Format, 3, 5).bytes_per_record(), 16 + 16);
  EXPECT_EQ(RecordLayout(kInt8Format, 3, 32).bytes_per_record(), 16 + 32);
}

TEST(RecordLayout, Counts) {
  const RecordLayout odd({}, 509, 96);  // 48,864 elements: two full records and 16,096
  EXPECT_EQ(odd.num_records(), 3);
  EXPECT_EQ(odd.stored_bytes(), 3 * 8464);
  EXPECT_EQ(odd.elements_in({1, 2}), 16384 + 16096);
  EXPECT_EQ(odd.num_blocks(), 764);  // the last one of 32
  EXPECT_EQ(odd.num_nested_blocks(), 3);
  const RecordLayout large_blocks({Kind::kNf4, true, 4096}, 1 << 11, 1 << 11);
  EXPECT_EQ(large_blocks.num_records(), 256);
  EXPECT_EQ(large_blocks.num_nested_blocks(), 4);
  EXPECT_EQ(large_blocks.nested_block_of(63), 0);
  EXPECT_EQ(large_blocks.nested_block_of(64), 1);
  const RecordLayout rows(kInt8Format, 37, 54);
  EXPECT_EQ(rows.num_records(), 37);
  EXPECT_EQ(rows.elements_in({36, 1}), 54);
  for (const Format& format : {Format{}, kInt8Format})
    for (const auto& [r, c] : {std::pair{0, 7}, {7, 0}, {0, 0}})
      EXPECT_EQ(RecordLayout(format, r, c).stored_bytes(), 0);
}

TEST(RecordLayout, RefusesRunsOutside) {
  const RecordLayout layout({}, 509, 96);
  EXPECT_THROW(layout.elements_in({2, 2}), Error);
  EXPECT_THROW(layout.elements_in({-1, 1}), Error);
  EXPECT_THROW(RecordLayout({}, -1, 4), Error);
}

}  // namespace
}  // namespace shardtune::quant
