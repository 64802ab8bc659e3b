// Every level of vector instructions gives the bits of the plain twins, whatever the values and shapes.
#include <algorithm>
#include <cmath>

#include "quant/int8_row.h"
#include "quant/reference.h"
#include "shardtune/quant/arrays.h"
#include "shardtune/quant/dequantise.h"
#include "support.h"

namespace shardtune::quant {
namespace {

using testing::AtLevel;

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
// A partial last record, short last blocks of odd size, one record, several, nothing.
constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1},     {3, 5},    {37, 54},   {1, 130}, {509, 96},
                                                             {256, 192}, {1, 4097}, {331, 149}, {0, 5},   {5, 0}};

std::vector<Format> formats() {
  std::vector<Format> all{kInt8Format};
  for (const Kind kind : {Kind::kNf4, Kind::kFp4})
    for (const bool nested : {false, true})
      for (const std::int64_t block : {64, 128, 4096}) all.push_back({kind, nested, block});
  return all;
}

std::vector<std::byte> records_of(const RecordLayout& layout, const ConstElements& values, float offset) {
  if (layout.format().four_bit()) return testing::quantised(layout, values, offset);
  std::vector<std::byte> records = testing::room_for(layout, layout.all_records());
  quantise_rows(layout, layout.all_records(), values, records);
  return records;
}

std::vector<std::byte> values_of(const RecordLayout& layout, const std::vector<std::byte>& records, Dtype dtype) {
  std::vector<std::byte> values(static_cast<std::size_t>(layout.elements()) * dtype_bytes(dtype), std::byte{0xA5});
  dequantise(layout, records, {values.data(), dtype, layout.elements()});
  return values;
}

void expect_levels_agree(const RecordLayout& layout, Dtype from, unsigned seed) {
  const auto bytes = testing::wild_values(from, layout.elements(), seed);
  const float offset = layout.format().double_quantisation ? 1.5e30F : 0.0F;
  std::vector<std::byte> plain_records;
  std::vector<std::vector<std::byte>> plain_values;
  for (const auto level : testing::levels()) {
    SCOPED_TRACE("level " + std::to_string(static_cast<int>(level)));
    const AtLevel at(level);
    const auto records = records_of(layout, {bytes.data(), from, layout.elements()}, offset);
    std::vector<std::vector<std::byte>> values;
    for (const Dtype to : kDtypes) values.push_back(values_of(layout, records, to));
    if (level == simd::Level::kPlain) {
      plain_records = records;
      plain_values = values;
    }
    EXPECT_TRUE(records == plain_records);
    EXPECT_TRUE(values == plain_values);
  }
}

TEST(Twins, MatricesOfEveryFormat) {
  unsigned seed = 0;
  for (const Format& format : formats())
    for (const auto& [rows, columns] : kShapes)
      for (const Dtype from : kDtypes) {
        SCOPED_TRACE(std::string(kind_name(format.kind)) + " block " + std::to_string(format.block_size) + " " +
                     std::to_string(rows) + "x" + std::to_string(columns) + " " + std::string(dtype_name(from)));
        expect_levels_agree(RecordLayout(format, rows, columns), from, ++seed);
      }
}

TEST(Twins, Blockwise) {
  for (const StateCode code : {StateCode::kSigned, StateCode::kUnsigned})
    for (const std::int64_t count : {0, 1, 255, 256, 257, 100'003}) {
      const auto bytes = testing::wild_values(Dtype::kF32, count, static_cast<unsigned>(count));
      std::vector<float> values(static_cast<std::size_t>(count));
      if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
      const auto blocks = static_cast<std::size_t>((count + kStateBlock - 1) / kStateBlock);
      std::vector<float> absmax(blocks), again(values.size()), plain_absmax(blocks), plain_again(values.size());
      std::vector<std::uint8_t> codes(values.size()), plain_codes(values.size());
      reference::quantise_blockwise(code, values, plain_absmax, plain_codes);
      reference::dequantise_blockwise(code, plain_codes, plain_absmax, plain_again);
      for (const auto level : testing::levels()) {
        const AtLevel at(level);
        quantise_blockwise(code, values, absmax, codes);
        dequantise_blockwise(code, codes, absmax, again);
        EXPECT_EQ(codes, plain_codes);
        EXPECT_EQ(testing::bytes_of(absmax), testing::bytes_of(plain_absmax));
        EXPECT_EQ(testing::bytes_of(again), testing::bytes_of(plain_again));
      }
    }
}

/// The matrix made and taken apart in runs of `step` records.
void expect_runs_agree(const RecordLayout& layout, const std::vector<std::byte>& bytes, float offset,
                       std::int64_t step) {
  const auto absmax = testing::absmax_of(layout, {bytes.data(), Dtype::kBF16, layout.elements()});
  const auto whole = testing::quantised(layout, {bytes.data(), Dtype::kBF16, layout.elements()}, offset);
  const auto values = values_of(layout, whole, Dtype::kBF16);
  for (std::int64_t first = 0; first < layout.num_records(); first += step) {
    const RecordRun run{first, std::min(step, layout.num_records() - first)};
    const std::int64_t begin = first * kRecordElements, count = layout.elements_in(run);
    auto records = testing::room_for(layout, run);
    std::vector<float> part(static_cast<std::size_t>(layout.blocks_in(run)));
    quantise_codes(layout, run, {bytes.data() + 2 * begin, Dtype::kBF16, count}, part, records);
    EXPECT_TRUE(std::ranges::equal(
        part, std::span(absmax).subspan(static_cast<std::size_t>(begin / layout.format().block_size), part.size())));
    write_scales(layout, run, absmax, offset, records);
    const auto place = static_cast<std::size_t>(first * layout.bytes_per_record());
    EXPECT_TRUE(std::ranges::equal(records, std::span(whole).subspan(place, records.size()))) << first;
    std::vector<std::byte> out(static_cast<std::size_t>(2 * count));
    dequantise(layout, run, records, {out.data(), Dtype::kBF16, count});
    EXPECT_TRUE(std::ranges::equal(out, std::span(values).subspan(static_cast<std::size_t>(2 * begin), out.size())));
  }
}

TEST(Twins, RunsOfRecordsGiveTheBytesOfOneRun) {
  for (const auto& [block, rows] : {std::pair<std::int64_t, std::int64_t>{64, 509}, {256, 1001}, {4096, 14'001}}) {
    // 96 columns: with blocks of 4096 the 83 records are under two nested absmax.
    const RecordLayout layout({Kind::kNf4, true, block}, rows, 96);
    const auto bytes = testing::ordinary_values(layout.elements(), 7);
    for (const std::int64_t step : {1, 2, 5}) expect_runs_agree(layout, bytes, 1.5F, step);
  }
}

/// Dequantised at once into memory that begins `shift` bytes behind a multiple of 64.
std::vector<std::byte> at_once(const RecordLayout& layout, const std::vector<std::byte>& records, std::size_t shift) {
  const auto bytes = static_cast<std::size_t>(2 * layout.elements());
  std::vector<std::byte> room(bytes + 128);
  const std::size_t begin = (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) + shift;
  dequantise(layout, records, {room.data() + begin, Dtype::kBF16, layout.elements()});
  return {room.begin() + static_cast<std::ptrdiff_t>(begin), room.begin() + static_cast<std::ptrdiff_t>(begin + bytes)};
}

// Results above 16 MiB are stored past the caches, if they lie at a multiple of 64 bytes.
TEST(Twins, LargeResults) {
  // Of int8, one row in 32 lies at such a place, and its end is not a whole line.
  for (const RecordLayout& layout : {RecordLayout({}, 8209, 1031), RecordLayout(kInt8Format, 1700, 5001)}) {
    const auto values = testing::wild_values(Dtype::kBF16, layout.elements(), 1);
    const auto records = records_of(layout, {values.data(), Dtype::kBF16, layout.elements()}, 1e36F);
    const AtLevel plain(simd::Level::kPlain);
    const auto expected = at_once(layout, records, 0);
    for (const auto level : testing::levels()) {
      const AtLevel at(level);
      EXPECT_TRUE(at_once(layout, records, 0) == expected);
      EXPECT_TRUE(at_once(layout, records, 2) == expected);
    }
  }
}

// Rows of every magnitude: of subnormal products, of those that overflow, of an absmax that is not finite; with and without the
// processor's own rounding to bf16.
TEST(Twins, Int8RowsOfEveryMagnitude) {
  std::vector<float> absmax{0.0F,   1e-45F, 1e-38F, 1.2e-38F, 2e-36F, 9e-36F,   1e-35F, 1.1e-35F,
                            1e-20F, 0.7F,   3.0F,   3e36F,    3e38F,  INFINITY, NAN,    -1.0F};
  // One product in 65,536 lies in the middle of two bf16 numbers.
  for (int i = 0; i < 4096; ++i) absmax.push_back(0.5F + static_cast<float>(i * 7919 % 4099) / 4099.0F);
  const std::int64_t rows = std::ssize(absmax), columns = 256;
  std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(i % 256);
  const RecordLayout layout(kInt8Format, rows, columns);
  std::vector<std::byte> records = testing::room_for(layout, layout.all_records());
  records_from_rows(layout, layout.all_records(), codes, absmax, records);
  const bool native = int8_rows_round_in_hardware();
  for (const Dtype to : kDtypes) {
    const auto expected = [&] {
      const AtLevel plain(simd::Level::kPlain);
      return values_of(layout, records, to);
    }();
    for (const auto level : testing::levels())
      for (const bool hardware : {native, false}) {
        const AtLevel at(level);
        int8_rows_round_in_hardware() = hardware;
        EXPECT_TRUE(values_of(layout, records, to) == expected)
            << dtype_name(to) << static_cast<int>(level) << hardware;
      }
    int8_rows_round_in_hardware() = native;
  }
}

// With blocks of 4096 a nested absmax stands over 64 records.
TEST(Twins, NestedBlocksSpanRecords) {
  const RecordLayout layout({Kind::kNf4, true, 4096}, 14'001, 96);
  const auto bytes = testing::ordinary_values(layout.elements(), 7);
  const ConstElements values{bytes.data(), Dtype::kBF16, layout.elements()};
  auto shifted = testing::absmax_of(layout, values);
  const float offset = 1.5F;
  for (float& absmax : shifted) absmax -= offset;
  std::vector<float> nested_absmax(2);
  std::vector<std::uint8_t> codes(shifted.size());
  reference::quantise_blockwise(StateCode::kSigned, shifted, nested_absmax, codes);
  const FourBitArrays made = arrays_from_records(layout, testing::quantised(layout, values, offset));
  EXPECT_EQ(made.absmax_codes, codes);
  EXPECT_EQ(made.nested_absmax, nested_absmax);
  EXPECT_NE(nested_absmax[0], nested_absmax[1]);
  EXPECT_EQ(layout.num_records(), 83);
}

TEST(Twins, RowsByRuns) {
  const RecordLayout layout(kInt8Format, 37, 54);
  const auto bytes = testing::wild_values(Dtype::kF32, layout.elements(), 3);
  const auto whole = records_of(layout, {bytes.data(), Dtype::kF32, layout.elements()}, 0);
  const RecordRun run{11, 20};
  auto records = testing::room_for(layout, run);
  quantise_rows(layout, run, {bytes.data() + std::size_t{4 * 54 * 11}, Dtype::kF32, 20 * 54}, records);
  EXPECT_TRUE(std::ranges::equal(records, std::span(whole).subspan(11 * 80, records.size())));
}

}  // namespace
}  // namespace shardtune::quant
