// Single values: conversions of the 16-bit types, midpoints, zero blocks, bytes not in use, arguments of the wrong size.
#include <cmath>
#include <numeric>

#include "quant/element_types.h"
#include "quant/table_structs.h"
#include "shardtune/core/error.h"
#include "shardtune/quant/arrays.h"
#include "shardtune/quant/blockwise.h"
#include "shardtune/quant/dequantise.h"
#include "support.h"

namespace shardtune::quant {
namespace {

using testing::AtLevel;

/// fp16 by its definition.
double fp16_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31U);
  const double fraction = bits & 1023U;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000U) != 0 ? -size : size;
}

TEST(ElementTypes, Fp16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7C00U) == 0x7C00U) continue;
    const float wide = widened(Fp16{static_cast<std::uint16_t>(bits)});
    ASSERT_EQ(static_cast<double>(wide), fp16_value(bits));
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000U);
    ASSERT_EQ(narrowed<Fp16>(wide).bits, bits);
    if ((bits & 0x7FFFU) == 0x7BFFU) continue;
    // Half-way to the next: to the even one; a step beyond: to the next.
    const auto middle = static_cast<float>((fp16_value(bits) + fp16_value(bits + 1)) / 2);
    ASSERT_EQ(narrowed<Fp16>(middle).bits, bits + (bits & 1U));
    ASSERT_EQ(narrowed<Fp16>(std::nextafter(middle, 0.0F)).bits, bits);
    ASSERT_EQ(narrowed<Fp16>(std::nextafter(middle, middle * 2)).bits, bits + 1);
  }
  EXPECT_EQ(narrowed<Fp16>(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(narrowed<Fp16>(65520.0F).bits, 0x7C00);
  EXPECT_EQ(narrowed<Fp16>(-1e30F).bits, 0xFC00);
  EXPECT_EQ(narrowed<Fp16>(INFINITY).bits, 0x7C00);
  EXPECT_EQ(narrowed<Fp16>(NAN).bits & 0x7FFF, 0x7E00);
  EXPECT_TRUE(std::isinf(widened(Fp16{0x7C00})));
  EXPECT_TRUE(std::isnan(widened(Fp16{0x7E01})));
}

TEST(ElementTypes, Bf16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const float wide = widened(Bf16{narrow});
    if (std::isnan(wide) || std::isinf(wide)) continue;
    ASSERT_EQ(narrowed<Bf16>(wide).bits, bits);
    const float middle = float_of(bits << 16 | 0x8000U);
    ASSERT_EQ(narrowed<Bf16>(middle).bits, bits + (bits & 1U));
    ASSERT_EQ(narrowed<Bf16>(float_of(bits << 16 | 0x7FFFU)).bits, bits);
    ASSERT_EQ(narrowed<Bf16>(float_of(bits << 16 | 0x8001U)).bits, bits + 1);
  }
  EXPECT_EQ(narrowed<Bf16>(NAN).bits, 0x7FC0);
}

/// The code of x in a block whose absmax is 1, by way of a whole matrix.
unsigned code_in_matrix(Kind kind, float x) {
  std::vector<float> values(64, 0.0F);
  values[0] = x;
  values[1] = 1.0F;
  const RecordLayout layout({kind, false, 64}, 1, 64);
  const auto records = testing::quantised(layout, {values.data(), Dtype::kF32, 64}, 0);
  return arrays_from_records(layout, records).packed.at(0) >> 4U;
}

TEST(Rules, AMidpointTakesTheLowerCode) {
  for (const auto level : testing::levels()) {
    const AtLevel at(level);
    const auto nf4 = code_values(Kind::kNf4);
    for (unsigned i = 0; i < 15; ++i) {
      const float middle = (nf4[i] + nf4[i + 1]) / 2;
      EXPECT_EQ(code_in_matrix(Kind::kNf4, middle), i);
      EXPECT_EQ(code_in_matrix(Kind::kNf4, std::nextafter(middle, 2.0F)), i + 1);
      EXPECT_EQ(code_in_matrix(Kind::kNf4, nf4[i]), i);
    }
    // FP4's values in ascending order are those of codes 11 10 13 12 15 14 9 0 8 1 6 7 4 5 2 3, and 0 itself is code 0.
    constexpr unsigned kOrder[] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
    const auto fp4 = code_values(Kind::kFp4);
    for (unsigned i = 0; i < 15; ++i) {
      const float middle = (fp4[kOrder[i]] + fp4[kOrder[i + 1]]) / 2;
      EXPECT_EQ(code_in_matrix(Kind::kFp4, middle), kOrder[i]);
      EXPECT_EQ(code_in_matrix(Kind::kFp4, std::nextafter(middle, 2.0F)), kOrder[i + 1]);
    }
    EXPECT_EQ(code_in_matrix(Kind::kFp4, -0.0F), 0U);
    EXPECT_EQ(code_in_matrix(Kind::kFp4, 1e-9F), 8U);
  }
}

TEST(Rules, ZeroMatrix) {
  const std::vector<float> zeros(1000, 0.0F);
  for (const auto level : testing::levels()) {
    const AtLevel at(level);
    const RecordLayout layout({}, 10, 100);
    const auto records = testing::quantised(layout, {zeros.data(), Dtype::kF32, 1000}, 0);
    const FourBitArrays made = arrays_from_records(layout, records);
    EXPECT_EQ(made.packed, std::vector<std::uint8_t>(500, 0x77));  // NF4's code of 0
    EXPECT_EQ(made.nested_absmax, std::vector<float>{0.0F});
    std::vector<float> back(1000, 1.0F);
    dequantise(layout, records, {back.data(), Dtype::kF32, 1000});
    EXPECT_EQ(back, zeros);
    const RecordLayout rows(kInt8Format, 10, 100);
    std::vector<std::byte> bytes = testing::room_for(rows, rows.all_records());
    quantise_rows(rows, rows.all_records(), {zeros.data(), Dtype::kF32, 1000}, bytes);
    EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size()));
  }
}

TEST(Rules, OneBlockStandsAtItsOffset) {
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), -20.0F);
  const RecordLayout layout({}, 1, 64);
  const auto records =
      testing::quantised(layout, {values.data(), Dtype::kF32, 64}, 43.0F);  // the mean of one is itself
  const FourBitArrays made = arrays_from_records(layout, records);
  EXPECT_EQ(made.absmax_codes.at(0), 0);
  EXPECT_EQ(made.nested_absmax.at(0), 0.0F);
  std::vector<float> back(64);
  dequantise(layout, records, {back.data(), Dtype::kF32, 64});
  EXPECT_EQ(back.back(), 43.0F);
}

TEST(Rules, BytesNotInUseAreZero) {
  const std::vector<float> ones(15, 1.0F);
  const RecordLayout layout({}, 3, 5);
  for (const auto level : testing::levels()) {
    const AtLevel at(level);
    auto records = testing::quantised(layout, {ones.data(), Dtype::kF32, 15}, 1.0F);
    // 1.0F of the offset, 15 codes of the largest value and one of 0; everything else is 0.
    EXPECT_EQ(records.at(4 + 3), std::byte{0x3F});
    EXPECT_EQ(records.at(16 + 256), std::byte{0xFF});
    EXPECT_EQ(records.at(16 + 256 + 7), std::byte{0xF7});
    std::ranges::fill_n(records.begin() + 4, 4, std::byte{0});
    std::ranges::fill_n(records.begin() + 16 + 256, 8, std::byte{0});
    EXPECT_EQ(records, std::vector<std::byte>(8464));
  }
}

TEST(Rules, Int8RoundsHalvesToEven) {
  // An absmax of 127 makes the factor 1.
  const std::vector<float> values{127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, -127.0F};
  const RecordLayout layout(kInt8Format, 1, 8);
  for (const auto level : testing::levels()) {
    const AtLevel at(level);
    std::vector<std::byte> records = testing::room_for(layout, layout.all_records());
    quantise_rows(layout, layout.all_records(), {values.data(), Dtype::kF32, 8}, records);
    std::vector<std::int8_t> codes(8);
    std::vector<float> absmax(1);
    rows_from_records(layout, layout.all_records(), records, codes, absmax);
    EXPECT_EQ(codes, (std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -2, -127}));
  }
}

TEST(Rules, AZeroBlockOfStatesIsByteZero) {
  std::vector<float> values(300, 0.0F);
  values[256] = 2.0F;
  std::vector<float> absmax(2);
  std::vector<std::uint8_t> codes(300, 9);
  for (const auto level : testing::levels()) {
    const AtLevel at(level);
    quantise_blockwise(StateCode::kSigned, values, absmax, codes);
    EXPECT_EQ(codes[0], 0);
    EXPECT_EQ(codes[255], 0);
    EXPECT_EQ(codes[256], 255);
    EXPECT_EQ(codes[257], 131);  // 0 lies between two points of the grid, and the upper one is nearest to 2e-5
  }
}

// 1 / absmax is infinite then, and bitsandbytes' kernel keeps the signs alone.
TEST(Rules, StatesSoSmallThatTheirInverseIsInfinite) {
  const std::vector<float> values{1e-40F, 3e-41F, 0.0F, -1e-42F, -9e-41F};
  std::vector<float> absmax(1);
  std::vector<std::uint8_t> codes(5);
  for (const auto level : testing::levels()) {
    const AtLevel at(level);
    quantise_blockwise(StateCode::kSigned, values, absmax, codes);
    EXPECT_EQ(codes, (std::vector<std::uint8_t>{255, 255, 0, 0, 0}));
    EXPECT_EQ(absmax[0], 1e-40F);
  }
}

TEST(Rules, SizesAreChecked) {
  const RecordLayout layout({}, 3, 5), rows(kInt8Format, 3, 5);
  std::vector<float> values(15), absmax(1);
  std::vector<std::byte> records(8464);
  const ConstElements fifteen{values.data(), Dtype::kF32, 15}, fourteen{values.data(), Dtype::kF32, 14};
  const auto all = layout.all_records();
  EXPECT_THROW(quantise_codes(layout, all, fourteen, absmax, records), Error);
  EXPECT_THROW(quantise_codes(layout, all, fifteen, std::span(absmax).first(0), records), Error);
  EXPECT_THROW(quantise_codes(layout, all, fifteen, absmax, std::span(records).first(100)), Error);
  EXPECT_THROW(quantise_codes(rows, rows.all_records(), fifteen, absmax, records), Error);
  EXPECT_THROW(quantise_codes(layout, all, {values.data(), Dtype::kF64, 15}, absmax, records), Error);
  EXPECT_THROW(quantise_rows(layout, all, fifteen, records), Error);
  EXPECT_THROW(write_scales(layout, all, std::span(absmax).first(0), 0, records), Error);
  EXPECT_THROW(write_scales(RecordLayout({Kind::kNf4, false, 64}, 3, 5), all, absmax, 1.0F, records), Error);
  EXPECT_THROW(dequantise(layout, records, {values.data(), Dtype::kF32, 14}), Error);
  EXPECT_THROW(records_from_arrays(layout, all, {}, records), Error);
  std::vector<std::uint8_t> codes(15);
  EXPECT_THROW(quantise_blockwise(StateCode::kSigned, values, {}, codes), Error);
}

}  // namespace
}  // namespace shardtune::quant
