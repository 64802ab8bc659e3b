#include "reference.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "record_access.h"
#include "typed.h"

namespace shardtune::quant::reference {
namespace {

template <typename T>
float largest(const T* values, std::int64_t count) {
  float absmax = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) absmax = std::max(absmax, std::abs(widened(values[i])));
  return absmax;
}

/// One block's codes, two to a byte. With an odd count the last low nibble is the code of 0.
template <typename T>
float quantise_block(const FourBitTable& table, const T* values, std::int64_t count, bool is_short, std::byte* packed) {
  const float absmax = largest(values, count);
  const float divisor = std::max(absmax, kSmallestAbsmax), factor = 1.0F / divisor;
  for (std::int64_t i = 0; i < count; i += 2) {
    unsigned pair = 0;
    for (std::int64_t j = i; j < i + 2; ++j) {
      const float value = j < count ? widened(values[j]) : 0.0F;
      pair = pair << 4 | code_of(is_short ? value / divisor : value * factor, table);
    }
    packed[i / 2] = static_cast<std::byte>(pair);
  }
  return absmax;
}

template <typename T>
void dequantise_four_bit(const RecordLayout& layout, const std::byte* record, std::int64_t count, T* out) {
  const FourBitTable& table = four_bit_table(layout.format().kind);
  const std::int64_t block = layout.format().block_size;
  std::array<float, kRecordElements / 64> absmax{};
  read_scales(layout, record, (count + block - 1) / block, absmax.data());
  const auto* packed = reinterpret_cast<const std::uint8_t*>(record + layout.packed_offset());
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = narrowed<T>(table.values[packed_code(packed, i)] * absmax[static_cast<std::size_t>(i / block)]);
}

}  // namespace

void quantise_codes(const RecordLayout& layout, RecordRun run, const ConstElements& values, std::span<float> absmax,
                    std::span<std::byte> records) {
  const FourBitTable& table = four_bit_table(layout.format().kind);
  const std::int64_t block = layout.format().block_size;
  std::ranges::fill(records, std::byte{0});
  with_pointer(values, [&](const auto* from) {
    for_each_record(layout, run, records.data(), [&](std::byte* record, std::int64_t first, std::int64_t count) {
      std::byte* packed = record + layout.packed_offset();
      for (std::int64_t i = 0; i < count; i += block) {
        const std::int64_t size = std::min(block, count - i);
        absmax[static_cast<std::size_t>((first + i) / block)] =
            quantise_block(table, from + first + i, size, size < block, packed + i / 2);
      }
    });
  });
}

void quantise_rows(const RecordLayout& layout, RecordRun run, const ConstElements& values,
                   std::span<std::byte> records) {
  std::ranges::fill(records, std::byte{0});
  with_pointer(values, [&](const auto* from) {
    for_each_record(layout, run, records.data(), [&](std::byte* record, std::int64_t first, std::int64_t count) {
      const float absmax = largest(from + first, count), factor = int8_factor(absmax);
      write_header(record, {absmax, 0});
      if (!std::isfinite(factor)) return;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto code = static_cast<std::int8_t>(std::nearbyint(widened(from[first + i]) * factor));
        record[kHeaderBytes + i] = static_cast<std::byte>(code);
      }
    });
  });
}

void dequantise(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records, const Elements& out) {
  with_pointer(out, [&]<typename T>(T* to) {
    for_each_record(layout, run, records.data(), [&](const std::byte* record, std::int64_t first, std::int64_t count) {
      if (layout.format().four_bit()) return dequantise_four_bit(layout, record, count, to + first);
      const float absmax = read_header(record).absmax;
      for (std::int64_t i = 0; i < count; ++i)
        to[first + i] = narrowed<T>(int8_value(static_cast<std::int8_t>(record[kHeaderBytes + i]), absmax));
    });
  });
}

void quantise_blockwise(StateCode code, std::span<const float> values, std::span<float> absmax,
                        std::span<std::uint8_t> codes) {
  const EightBitTable& table = eight_bit_table(code);
  for (std::size_t block = 0; block < absmax.size(); ++block) {
    const std::size_t first = block * kStateBlock, count = std::min<std::size_t>(kStateBlock, values.size() - first);
    absmax[block] = largest(values.data() + first, static_cast<std::int64_t>(count));
    const float factor = 1.0F / absmax[block];
    for (std::size_t i = first; i < first + count; ++i) {
      const unsigned nearest = code_at_grid_point(grid_point(values[i] * factor), table);
      codes[i] = static_cast<std::uint8_t>(absmax[block] == 0.0F ? 0U : nearest);
    }
  }
}

void dequantise_blockwise(StateCode code, std::span<const std::uint8_t> codes, std::span<const float> absmax,
                          std::span<float> values) {
  const EightBitTable& table = eight_bit_table(code);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = table.values[codes[i]] * absmax[i / kStateBlock];
}

}  // namespace shardtune::quant::reference
