// int8 rows and 8-bit blocks against bitsandbytes.
#include "quant/element_types.h"
#include "shardtune/quant/arrays.h"
#include "shardtune/quant/blockwise.h"
#include "shardtune/quant/dequantise.h"
#include "support.h"

namespace shardtune::quant {
namespace {

using testing::AtLevel;
using testing::Reference;
using testing::Stored;

std::vector<std::byte> quantised_rows(const RecordLayout& layout, const ConstElements& values) {
  std::vector<std::byte> records = testing::room_for(layout, layout.all_records());
  quantise_rows(layout, layout.all_records(), values, records);
  return records;
}

void expect_rows(const RecordLayout& layout, const std::vector<std::byte>& records, const Stored& codes,
                 const Stored& absmax) {
  std::vector<std::int8_t> made(codes.bytes.size());
  std::vector<float> scales(static_cast<std::size_t>(layout.rows()));
  rows_from_records(layout, layout.all_records(), records, made, scales);
  EXPECT_EQ(made, codes.as<std::int8_t>());
  EXPECT_EQ(scales, absmax.as<float>());
  auto again = testing::room_for(layout, layout.all_records());
  records_from_rows(layout, layout.all_records(), made, scales, again);
  EXPECT_EQ(again, records);
}

TEST(Int8Parity, EveryMatrix) {
  const Reference int8("int8");
  std::size_t matrices = 0;
  for (const std::string& name : int8.stems(".int8")) {
    if (name == "layer") continue;
    const Stored weight = int8[name + ".weight"];
    const RecordLayout layout(kInt8Format, weight.shape.at(0), weight.shape.at(1));
    for (const auto level : testing::levels()) {
      const AtLevel at(level);
      SCOPED_TRACE(name + " level " + std::to_string(static_cast<int>(level)));
      const auto records = quantised_rows(layout, weight.elements());
      expect_rows(layout, records, int8[name + ".int8"], int8[name + ".absmax"]);
      if (!int8.has(name + ".dequantised")) continue;
      const Stored expected = int8[name + ".dequantised"];
      std::vector<std::byte> out(expected.bytes.size());
      dequantise(layout, records, {out.data(), Dtype::kF32, expected.count()});
      EXPECT_EQ(out, expected.bytes);
    }
    ++matrices;
  }
  EXPECT_EQ(matrices, 17U);
}

// Linear8bitLt casts to fp16 before it quantises.
TEST(Int8Parity, TheLayersWeight) {
  const Reference int8("int8");
  const Stored weight = int8["layer.weight"];
  std::vector<Fp16> narrow;
  for (const float value : weight.as<float>()) narrow.push_back(narrowed<Fp16>(value));
  const RecordLayout layout(kInt8Format, weight.shape.at(0), weight.shape.at(1));
  const auto records = quantised_rows(layout, {narrow.data(), Dtype::kF16, std::ssize(narrow)});
  expect_rows(layout, records, int8["layer.int8"], int8["layer.absmax"]);
}

void expect_blocks(StateCode code, const std::vector<float>& values, const std::vector<std::uint8_t>& expected,
                   const std::vector<float>& expected_absmax) {
  std::vector<float> absmax(expected_absmax.size());
  std::vector<std::uint8_t> codes(values.size());
  quantise_blockwise(code, values, absmax, codes);
  EXPECT_EQ(absmax, expected_absmax);
  EXPECT_EQ(codes, expected);
}

TEST(BlockwiseParity, BytesAndValues) {
  const Reference blocks("blockwise_8bit");
  for (const auto& [name, code] :
       {std::pair{"dynamic_signed", StateCode::kSigned}, std::pair{"dynamic_unsigned", StateCode::kUnsigned}}) {
    const auto get = [&, stem = std::string(name)](const char* part) { return blocks[stem + "." + part]; };
    for (const auto level : testing::levels()) {
      const AtLevel at(level);
      SCOPED_TRACE(std::string(name) + " level " + std::to_string(static_cast<int>(level)));
      expect_blocks(code, get("input").as<float>(), get("bytes").as<std::uint8_t>(), get("absmax").as<float>());
      std::vector<float> values(static_cast<std::size_t>(get("input").count()));
      dequantise_blockwise(code, get("bytes").as<std::uint8_t>(), get("absmax").as<float>(), values);
      EXPECT_EQ(testing::bytes_of(values), get("dequantised").bytes);
    }
  }
}

// After the first step the moments are known from the gradient alone; in this order of products their absmax are the peer's.
TEST(BlockwiseParity, OptimizerStatesAfterTheFirstStep) {
  const Reference adamw("adamw_8bit");
  for (const auto& [tensor, gradient] : {std::pair{"0_64x128", "grad.0.1"}, std::pair{"1_100x77", "grad.1.1"}}) {
    const std::string step = "AdamW8bit." + std::string(tensor) + ".fp32.step1.";
    std::vector<float> first, second;
    for (const float g : adamw[gradient].as<float>()) {
      first.push_back(0.1F * g);
      second.push_back((0.001F * g) * g);
    }
    for (const auto level : testing::levels()) {
      const AtLevel at(level);
      expect_blocks(StateCode::kSigned, first, adamw[step + "state1"].as<std::uint8_t>(),
                    adamw[step + "absmax1"].as<float>());
      expect_blocks(StateCode::kUnsigned, second, adamw[step + "state2"].as<std::uint8_t>(),
                    adamw[step + "absmax2"].as<float>());
    }
  }
}

}  // namespace
}  // namespace shardtune::quant
