#include "shardtune/quant/quantise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absmax.h"
#include "record_access.h"
#include "reference.h"
#include "shardtune/core/error.h"
#include "shardtune/core/simd_level.h"
#include "shardtune/quant/blockwise.h"
#include "typed.h"

namespace shardtune::quant {
namespace {

constexpr std::int64_t kChunk = 64;

/// Two codes by two places: packed places become packed codes.
using PairMap = std::array<std::uint8_t, 256>;

PairMap pair_map_of(const FourBitTable& table) {
  PairMap map{};
  for (std::size_t i = 0; i < map.size(); ++i)
    map[i] = static_cast<std::uint8_t>(table.code_at[i >> 4] << 4 | table.code_at[i & 15]);
  return map;
}

/// How many midpoints lie below the value. Written out, because a loop in the loop over values would not vectorise.
template <std::size_t... kPlace>
[[gnu::always_inline]] inline std::int32_t place_of(float value, const float* midpoints,
                                                    std::index_sequence<kPlace...>) {
  return ((value > midpoints[kPlace] ? 1 : 0) + ...);
}

/// The places of 64 scaled values among the midpoints, two to a byte.
[[gnu::always_inline]] inline void pack_places(const float* midpoints, const float* scaled, std::uint8_t* packed) {
  alignas(64) std::array<std::int32_t, kChunk> places;
  for (std::size_t i = 0; i < kChunk; ++i) places[i] = place_of(scaled[i], midpoints, std::make_index_sequence<15>());
  for (std::size_t i = 0; i < kChunk / 2; ++i)
    packed[i] = static_cast<std::uint8_t>(places[2 * i] << 4 | places[2 * i + 1]);
}

/// Full blocks only. `remap` is null where places are codes.
template <typename T>
struct QuantiseBlocks {
  [[gnu::always_inline]] static void run(const FourBitTable* table, const std::uint8_t* remap, const T* values,
                                         std::int64_t blocks, std::int64_t block_size, float* absmax,
                                         std::uint8_t* packed) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const T* from = values + block * block_size;
      absmax[block] = largest_magnitude(from, block_size);
      const float factor = 1.0F / std::max(absmax[block], kSmallestAbsmax);
      for (std::int64_t i = 0; i < block_size; i += kChunk, packed += kChunk / 2) {
        alignas(64) std::array<float, kChunk> scaled;
        for (std::int64_t j = 0; j < kChunk; ++j) scaled[static_cast<std::size_t>(j)] = widened(from[i + j]) * factor;
        pack_places(table->midpoints, scaled.data(), packed);
        if (remap != nullptr)
          for (std::int64_t j = 0; j < kChunk / 2; ++j) packed[j] = remap[packed[j]];
      }
    }
  }
};

template <typename T>
struct QuantiseRow {
  [[gnu::always_inline]] static void run(const T* values, std::int64_t count, float factor, std::int8_t* codes) {
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
    for (std::int64_t i = 0; i < count; ++i) {
      const float rounded = (widened(values[i]) * factor + kRound) - kRound;
      codes[i] = static_cast<std::int8_t>(static_cast<int>(rounded));
    }
  }
};

template <typename T>
struct RowAbsmax {
  [[gnu::always_inline]] static void run(const T* values, std::int64_t count, float* absmax) {
    *absmax = largest_magnitude(values, count);
  }
};

void check_sizes(const RecordLayout& layout, RecordRun run, std::int64_t values, std::span<std::byte> records) {
  SHARDTUNE_CHECK(values == layout.elements_in(run), "{} values for {} elements", values, layout.elements_in(run));
  SHARDTUNE_CHECK(std::ssize(records) == run.count * layout.bytes_per_record(), "{} bytes for {} records",
                  records.size(), run.count);
}

}  // namespace

void quantise_codes(const RecordLayout& layout, RecordRun run, const ConstElements& values, std::span<float> absmax,
                    std::span<std::byte> records) {
  SHARDTUNE_CHECK(layout.format().four_bit(), "int8 is quantised by rows");
  check_sizes(layout, run, values.count, records);
  SHARDTUNE_CHECK(std::ssize(absmax) == layout.blocks_in(run), "{} absmax for {} blocks", absmax.size(),
                  layout.blocks_in(run));
  if (simd::level() == simd::Level::kPlain) return reference::quantise_codes(layout, run, values, absmax, records);
  const FourBitTable& table = four_bit_table(layout.format().kind);
  static const PairMap fp4_map = pair_map_of(four_bit_table(Kind::kFp4));
  const std::uint8_t* remap = layout.format().kind == Kind::kFp4 ? fp4_map.data() : nullptr;
  const std::int64_t block = layout.format().block_size;
  with_pointer(values, [&]<typename T>(const T* from) {
    for_each_record(layout, run, records.data(), [&](std::byte* record, std::int64_t first, std::int64_t count) {
      const auto scales = absmax.subspan(static_cast<std::size_t>(first / block));
      const RecordRun one{run.first + first / kRecordElements, 1};
      const auto bytes = static_cast<std::size_t>(layout.bytes_per_record());
      if (count % block != 0)  // a short block, once in a matrix
        return reference::quantise_codes(layout, one, {from + first, values.dtype, count}, scales, {record, bytes});
      std::fill_n(record, bytes, std::byte{0});
      simd::run<QuantiseBlocks<T>>(&table, remap, from + first, count / block, block, scales.data(),
                                   reinterpret_cast<std::uint8_t*>(record + layout.packed_offset()));
    });
  });
}

void write_scales(const RecordLayout& layout, RecordRun run, std::span<const float> absmax, float offset,
                  std::span<std::byte> records) {
  SHARDTUNE_CHECK(layout.format().four_bit(), "int8 has no blocks");
  check_sizes(layout, run, layout.elements_in(run), records);
  SHARDTUNE_CHECK(std::ssize(absmax) == layout.num_blocks(), "{} absmax, but the matrix has {} blocks", absmax.size(),
                  layout.num_blocks());
  const bool nested = layout.format().double_quantisation;
  SHARDTUNE_CHECK(nested || offset == 0.0F, "offset {} without double quantisation", offset);
  const std::int64_t per_record = layout.blocks_per_record();
  std::array<float, kNestedBlock> shifted{};
  std::array<std::uint8_t, kNestedBlock> codes{};
  float nested_absmax = 0;
  std::int64_t nested_block = -1;  // the one that shifted, codes and nested_absmax are of
  for (std::int64_t i = 0; i < run.count; ++i) {
    std::byte* record = records.data() + i * layout.bytes_per_record();
    const std::int64_t begin = (run.first + i) * per_record;
    const std::int64_t count = std::min(per_record, layout.num_blocks() - begin);
    if (!nested) {
      std::memcpy(record + kHeaderBytes, absmax.data() + begin, static_cast<std::size_t>(count) * sizeof(float));
      continue;
    }
    const std::int64_t first = layout.nested_block_of(run.first + i) * kNestedBlock;
    const auto size = static_cast<std::size_t>(std::min(kNestedBlock, layout.num_blocks() - first));
    if (first / kNestedBlock != nested_block) {
      for (std::size_t k = 0; k < size; ++k) shifted[k] = absmax[static_cast<std::size_t>(first) + k] - offset;
      quantise_blockwise(StateCode::kSigned, std::span(shifted).first(size), {&nested_absmax, 1},
                         std::span(codes).first(size));
      nested_block = first / kNestedBlock;
    }
    write_header(record, {nested_absmax, offset});
    std::memcpy(record + kHeaderBytes, codes.data() + (begin - first), static_cast<std::size_t>(count));
  }
}

void quantise_rows(const RecordLayout& layout, RecordRun run, const ConstElements& values,
                   std::span<std::byte> records) {
  SHARDTUNE_CHECK(!layout.format().four_bit(), "only int8 is quantised by rows");
  check_sizes(layout, run, values.count, records);
  if (simd::level() == simd::Level::kPlain) return reference::quantise_rows(layout, run, values, records);
  std::ranges::fill(records, std::byte{0});
  with_pointer(values, [&]<typename T>(const T* from) {
    for_each_record(layout, run, records.data(), [&](std::byte* record, std::int64_t first, std::int64_t count) {
      float absmax = 0;
      simd::run<RowAbsmax<T>>(from + first, count, &absmax);
      write_header(record, {absmax, 0});
      const float factor = int8_factor(absmax);
      if (std::isfinite(factor))
        simd::run<QuantiseRow<T>>(from + first, count, factor, reinterpret_cast<std::int8_t*>(record + kHeaderBytes));
    });
  });
}

}  // namespace shardtune::quant
