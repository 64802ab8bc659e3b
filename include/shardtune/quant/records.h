#pragma once
#include <cstddef>
#include <cstdint>

#include "shardtune/quant/format.h"

namespace shardtune::quant {

/// Elements of a 4-bit record.
inline constexpr std::int64_t kRecordElements = 16384;
/// Absmax values under one nested absmax.
inline constexpr std::int64_t kNestedBlock = 256;
inline constexpr std::int64_t kHeaderBytes = 16;

/// Whole records that follow each other.
struct RecordRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// How the bytes of a quantised matrix lie: a sequence of records of equal size, each of which can be dequantised by itself,
/// so that a flat buffer of them can be cut over ranks and gathered again. Little-endian; bytes not in use are zero.
///
/// 4-bit: a record holds 16,384 elements of the flattened matrix (the last one what is left). Header of 16 bytes {float nested
/// absmax, float offset, 8 zero bytes}, both 0 without double quantisation; the scales of its blocks, uint8 codes with double
/// quantisation and fp32 without, padded to 16 bytes; 8,192 packed bytes, the first value in the high nibble. With double
/// quantisation 256 blocks share a nested absmax, so records that follow each other may repeat it.
///
/// int8: a record holds one row. Header of 16 bytes {float absmax, 12 zero bytes}, then one int8 per column, padded to 16.
class RecordLayout {
 public:
  /// Throws Error(kUsage) for an impossible format. rows and columns may be 0: no records.
  RecordLayout(const Format& format, std::int64_t rows, std::int64_t columns);

  const Format& format() const { return format_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t elements() const { return rows_ * columns_; }
  std::int64_t elements_per_record() const;
  std::int64_t bytes_per_record() const;
  std::int64_t num_records() const;
  std::int64_t stored_bytes() const { return num_records() * bytes_per_record(); }

  /// Elements of the run: fewer than elements_per_record() each only in the matrix's last record.
  std::int64_t elements_in(RecordRun run) const;
  RecordRun all_records() const { return {0, num_records()}; }

  /// 4-bit: blocks of a full record, of a run, of the matrix; the last block of a matrix may be short.
  std::int64_t blocks_per_record() const { return kRecordElements / format_.block_size; }
  std::int64_t blocks_in(RecordRun run) const;
  std::int64_t num_blocks() const { return blocks_in(all_records()); }
  /// With double quantisation: how many nested absmax the matrix has, and which of them a record's blocks are under.
  std::int64_t num_nested_blocks() const { return (num_blocks() + kNestedBlock - 1) / kNestedBlock; }
  std::int64_t nested_block_of(std::int64_t record) const { return record * blocks_per_record() / kNestedBlock; }
  /// Bytes of a record's scales without the padding, and where its packed bytes begin.
  std::int64_t scale_bytes() const { return blocks_per_record() * (format_.double_quantisation ? 1 : 4); }
  std::int64_t packed_offset() const;

 private:
  Format format_;
  std::int64_t rows_, columns_;
};

}  // namespace shardtune::quant
