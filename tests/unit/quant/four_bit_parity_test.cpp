// NF4 and FP4 against bitsandbytes: bytes, scales, nested state, values; its arrays to records and back.
#include "shardtune/core/error.h"
#include "shardtune/quant/arrays.h"
#include "shardtune/quant/dequantise.h"
#include "shardtune/quant/tables.h"
#include "support.h"

namespace shardtune::quant {
namespace {

using testing::AtLevel;
using testing::Reference;
using testing::Stored;

const Reference& four_bit() {
  static const Reference reference("four_bit");
  return reference;
}

/// A name is MATRIX.SOURCE.KIND.bBLOCK.single|double.
struct Case {
  std::string name, matrix;
  RecordLayout layout;
  std::string packed;  ///< stored once for single and double
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& name : four_bit().stems(".absmax")) {
    const bool nested = name.ends_with(".double");
    const Kind kind = name.find(".nf4.") != std::string::npos ? Kind::kNf4 : Kind::kFp4;
    const std::size_t block_at = name.find(".b64.") != std::string::npos ? name.find(".b64.") : name.find(".b128.");
    const std::string matrix = name.substr(0, block_at - 4);
    const auto shape = four_bit()[matrix + ".weight"].shape;
    const RecordLayout layout({kind, nested, name[block_at + 2] == '6' ? 64 : 128}, shape.at(0), shape.at(1));
    const std::string single = name.substr(0, name.rfind('.')) + ".single";
    const bool own = four_bit().has(name + ".packed");
    all.push_back({name, matrix, layout, (own ? name : single) + ".packed"});
  }
  return all;
}

std::vector<std::uint8_t> expected_packed(const Case& c) { return four_bit()[c.packed].as<std::uint8_t>(); }

float offset_of(const Case& c) {
  return c.layout.format().double_quantisation ? four_bit()[c.name + ".offset"].as<float>().at(0) : 0.0F;
}

void expect_values(const Case& c, const std::vector<std::byte>& records, const std::string& stored) {
  if (!four_bit().has(stored)) return;
  const Stored expected = four_bit()[stored];
  std::vector<std::byte> out(expected.bytes.size());
  dequantise(c.layout, records, {out.data(), expected.dtype, expected.count()});
  EXPECT_EQ(out, expected.bytes) << stored;
}

TEST(FourBitParity, TablesAreThoseOfBitsandbytes) {
  const Reference tables("code_tables");
  const auto expect_table = [&](auto values, const char* name) {
    EXPECT_EQ(std::vector<float>(values.begin(), values.end()), tables[name].as<float>()) << name;
  };
  expect_table(code_values(Kind::kNf4), "nf4");
  expect_table(code_values(Kind::kFp4), "fp4");
  expect_table(code_values(StateCode::kSigned), "dynamic_signed");
  expect_table(code_values(StateCode::kUnsigned), "dynamic_unsigned");
}

TEST(FourBitParity, EveryMatrix) {
  std::size_t nested = 0, matrices = 0;
  for (const Case& c : cases()) {
    const Stored weight = four_bit()[c.matrix + ".weight"];
    for (const auto level : testing::levels()) {
      const AtLevel at(level);
      SCOPED_TRACE(c.name + " level " + std::to_string(static_cast<int>(level)));
      const auto records = testing::quantised(c.layout, weight.elements(), offset_of(c));
      const FourBitArrays made = arrays_from_records(c.layout, records);
      EXPECT_EQ(made.packed, expected_packed(c));
      if (c.layout.format().double_quantisation) {
        EXPECT_EQ(made.absmax_codes, four_bit()[c.name + ".absmax"].as<std::uint8_t>());
        EXPECT_EQ(made.nested_absmax, four_bit()[c.name + ".nested_absmax"].as<float>());
        EXPECT_EQ(made.offset, offset_of(c));
        nested += made.nested_absmax.size() > 1 ? 1 : 0;
      } else {
        EXPECT_EQ(made.absmax, four_bit()[c.name + ".absmax"].as<float>());
      }
      expect_values(c, records, c.name + ".dequantised");
      expect_values(c, records, c.name + ".dequantised_bf16");
    }
    ++matrices;
  }
  EXPECT_EQ(matrices, 76U);
  EXPECT_GT(nested, 0U);
}

TEST(FourBitParity, ArraysBecomeTheSameRecords) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto records = testing::quantised(c.layout, four_bit()[c.matrix + ".weight"].elements(), offset_of(c));
    const auto packed = expected_packed(c);
    std::vector<float> absmax, nested_absmax;
    std::vector<std::uint8_t> codes;
    if (c.layout.format().double_quantisation) {
      codes = four_bit()[c.name + ".absmax"].as<std::uint8_t>();
      nested_absmax = four_bit()[c.name + ".nested_absmax"].as<float>();
    } else {
      absmax = four_bit()[c.name + ".absmax"].as<float>();
    }
    auto made = testing::room_for(c.layout, c.layout.all_records());
    records_from_arrays(c.layout, c.layout.all_records(), {packed, absmax, codes, nested_absmax, offset_of(c)}, made);
    EXPECT_EQ(made, records);
  }
}

TEST(FourBitParity, PrequantisedCheckpoint) {
  // Saved by Transformers; layer 0 of it.
  const Reference checkpoint("../models/tiny-nf4/model");
  std::size_t count = 0;
  for (const std::string& name : checkpoint.stems(".nested_absmax")) {
    if (name.find(".layers.0.") == std::string::npos) continue;
    SCOPED_TRACE(name);
    const auto packed = checkpoint[name].as<std::uint8_t>();
    const auto codes = checkpoint[name + ".absmax"].as<std::uint8_t>();
    const auto nested_absmax = checkpoint[name + ".nested_absmax"].as<float>();
    const RecordLayout layout({}, 1, 2 * static_cast<std::int64_t>(packed.size()));
    const auto nested_table = checkpoint[name + ".nested_quant_map"].as<float>();
    EXPECT_TRUE(std::ranges::equal(nested_table, code_values(StateCode::kSigned)));
    EXPECT_TRUE(std::ranges::equal(checkpoint[name + ".quant_map"].as<float>(), code_values(Kind::kNf4)));
    auto records = testing::room_for(layout, layout.all_records());
    records_from_arrays(layout, layout.all_records(), {packed, {}, codes, nested_absmax, 0.03F}, records);
    std::vector<float> values(packed.size() * 2);
    dequantise(layout, records, {values.data(), Dtype::kF32, std::ssize(values)});
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float absmax = nested_table[codes[i / 64]] * nested_absmax[i / 16384] + 0.03F;
      const unsigned code = i % 2 == 0 ? packed[i / 2] >> 4U : packed[i / 2] & 15U;
      ASSERT_EQ(values[i], code_values(Kind::kNf4)[code] * absmax) << i;
    }
    ++count;
  }
  EXPECT_EQ(count, 7U);
}

}  // namespace
}  // namespace shardtune::quant
