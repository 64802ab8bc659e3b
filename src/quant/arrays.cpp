#include "shardtune/quant/arrays.h"

#include <algorithm>

#include "record_access.h"
#include "shardtune/core/error.h"

namespace shardtune::quant {
namespace {

void check_sizes(const RecordLayout& layout, RecordRun run, const FourBitView& arrays, std::span<std::byte> records) {
  const auto packed = static_cast<std::size_t>((layout.elements_in(run) + 1) / 2);
  const auto blocks = static_cast<std::size_t>(layout.blocks_in(run));
  const bool nested = layout.format().double_quantisation;
  SHARDTUNE_CHECK(arrays.packed.size() == packed, "{} packed bytes, not {}", arrays.packed.size(), packed);
  SHARDTUNE_CHECK(arrays.absmax.size() == (nested ? 0 : blocks), "{} absmax for {} blocks", arrays.absmax.size(),
                  blocks);
  SHARDTUNE_CHECK(arrays.absmax_codes.size() == (nested ? blocks : 0), "{} absmax codes for {} blocks",
                  arrays.absmax_codes.size(), blocks);
  SHARDTUNE_CHECK(arrays.nested_absmax.size() == static_cast<std::size_t>(nested ? layout.num_nested_blocks() : 0),
                  "{} nested absmax for {} blocks", arrays.nested_absmax.size(), layout.num_blocks());
  SHARDTUNE_CHECK(records.size() == static_cast<std::size_t>(run.count * layout.bytes_per_record()),
                  "{} bytes for {} records", records.size(), run.count);
}

}  // namespace

void records_from_arrays(const RecordLayout& layout, RecordRun run, const FourBitView& arrays,
                         std::span<std::byte> records) {
  SHARDTUNE_CHECK(layout.format().four_bit(), "int8 has no blocks");
  check_sizes(layout, run, arrays, records);
  std::ranges::fill(records, std::byte{0});
  const bool nested = layout.format().double_quantisation;
  const auto scales = nested ? std::as_bytes(arrays.absmax_codes) : std::as_bytes(arrays.absmax);
  const auto packed = std::as_bytes(arrays.packed);
  const auto scale_step = static_cast<std::size_t>(layout.scale_bytes());
  for (std::int64_t i = 0; i < run.count; ++i) {
    std::byte* record = records.data() + i * layout.bytes_per_record();
    if (nested)
      write_header(record, {arrays.nested_absmax[static_cast<std::size_t>(layout.nested_block_of(run.first + i))],
                            arrays.offset});
    const auto place = static_cast<std::size_t>(i);
    std::ranges::copy(scales.subspan(place * scale_step, std::min(scale_step, scales.size() - place * scale_step)),
                      record + kHeaderBytes);
    constexpr std::size_t kPacked = kRecordElements / 2;
    std::ranges::copy(packed.subspan(place * kPacked, std::min(kPacked, packed.size() - place * kPacked)),
                      record + layout.packed_offset());
  }
}

FourBitArrays arrays_from_records(const RecordLayout& layout, std::span<const std::byte> records) {
  SHARDTUNE_CHECK(layout.format().four_bit(), "int8 has no blocks");
  SHARDTUNE_CHECK(records.size() == static_cast<std::size_t>(layout.stored_bytes()), "{} bytes of records, not {}",
                  records.size(), layout.stored_bytes());
  const bool nested = layout.format().double_quantisation;
  FourBitArrays arrays;
  arrays.packed.resize(static_cast<std::size_t>((layout.elements() + 1) / 2));
  (nested ? arrays.absmax_codes.resize(static_cast<std::size_t>(layout.num_blocks()))
          : arrays.absmax.resize(static_cast<std::size_t>(layout.num_blocks())));
  if (nested) arrays.nested_absmax.resize(static_cast<std::size_t>(layout.num_nested_blocks()));
  const auto scales = nested ? std::as_writable_bytes(std::span(arrays.absmax_codes))
                             : std::as_writable_bytes(std::span(arrays.absmax));
  const auto scale_step = static_cast<std::size_t>(layout.scale_bytes());
  for (std::int64_t i = 0; i < layout.num_records(); ++i) {
    const std::byte* record = records.data() + i * layout.bytes_per_record();
    const auto place = static_cast<std::size_t>(i);
    constexpr std::size_t kPacked = kRecordElements / 2;
    const auto codes = std::as_writable_bytes(std::span(arrays.packed)).subspan(place * kPacked);
    std::copy_n(record + layout.packed_offset(), std::min(kPacked, codes.size()), codes.begin());
    const auto part = scales.subspan(place * scale_step);
    std::copy_n(record + kHeaderBytes, std::min(scale_step, part.size()), part.begin());
    if (!nested) continue;
    const RecordHeader header = read_header(record);
    arrays.nested_absmax[static_cast<std::size_t>(layout.nested_block_of(i))] = header.absmax;
    arrays.offset = header.offset;
  }
  return arrays;
}

void records_from_rows(const RecordLayout& layout, RecordRun run, std::span<const std::int8_t> codes,
                       std::span<const float> absmax, std::span<std::byte> records) {
  SHARDTUNE_CHECK(!layout.format().four_bit() && layout.elements_in(run) == std::ssize(codes) &&
                      run.count == std::ssize(absmax) && run.count * layout.bytes_per_record() == std::ssize(records),
                  "{} codes and {} absmax for {} rows", codes.size(), absmax.size(), run.count);
  std::ranges::fill(records, std::byte{0});
  for_each_record(layout, run, records.data(), [&](std::byte* record, std::int64_t first, std::int64_t count) {
    write_header(record, {absmax[static_cast<std::size_t>(first / layout.columns())], 0});
    std::memcpy(record + kHeaderBytes, codes.data() + first, static_cast<std::size_t>(count));
  });
}

void rows_from_records(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records,
                       std::span<std::int8_t> codes, std::span<float> absmax) {
  SHARDTUNE_CHECK(!layout.format().four_bit() && layout.elements_in(run) == std::ssize(codes) &&
                      run.count == std::ssize(absmax) && run.count * layout.bytes_per_record() == std::ssize(records),
                  "{} codes and {} absmax for {} rows", codes.size(), absmax.size(), run.count);
  for_each_record(layout, run, records.data(), [&](const std::byte* record, std::int64_t first, std::int64_t count) {
    absmax[static_cast<std::size_t>(first / layout.columns())] = read_header(record).absmax;
    std::memcpy(codes.data() + first, record + kHeaderBytes, static_cast<std::size_t>(count));
  });
}

}  // namespace shardtune::quant
