#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardtune/quant/records.h"

/// Quantised matrices as bitsandbytes keeps them, in separate arrays, to records and back. Nothing is rounded.
namespace shardtune::quant {

/// Arrays of a 4-bit matrix. Without double quantisation `absmax` is used, with it the three members below.
struct FourBitArrays {
  std::vector<std::uint8_t> packed;  ///< two elements each, the first one in the high nibble
  std::vector<float> absmax;  ///< one per block
  std::vector<std::uint8_t> absmax_codes;  ///< one per block, in the signed 8-bit code
  std::vector<float> nested_absmax;  ///< one per 256 blocks
  float offset = 0;
};

/// The same for a run of records, in memory of the caller: `packed`, `absmax` and `absmax_codes` are those of the run,
/// `nested_absmax` is that of the whole matrix.
struct FourBitView {
  std::span<const std::uint8_t> packed;
  std::span<const float> absmax;
  std::span<const std::uint8_t> absmax_codes;
  std::span<const float> nested_absmax;
  float offset = 0;
};

/// Writes run.count records completely. Arrays of another size than the layout says are a mistake of the caller.
void records_from_arrays(const RecordLayout& layout, RecordRun run, const FourBitView& arrays,
                         std::span<std::byte> records);
/// Of a whole matrix.
FourBitArrays arrays_from_records(const RecordLayout& layout, std::span<const std::byte> records);

/// int8: `codes` [run.count, columns], `absmax` [run.count].
void records_from_rows(const RecordLayout& layout, RecordRun run, std::span<const std::int8_t> codes,
                       std::span<const float> absmax, std::span<std::byte> records);
void rows_from_records(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records,
                       std::span<std::int8_t> codes, std::span<float> absmax);

}  // namespace shardtune::quant
