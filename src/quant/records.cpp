#include "shardtune/quant/records.h"

#include <algorithm>

#include "shardtune/core/error.h"

namespace shardtune::quant {
namespace {

std::int64_t padded(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

RecordLayout::RecordLayout(const Format& format, std::int64_t rows, std::int64_t columns)
    : format_(format), rows_(rows), columns_(columns) {
  check_format(format);
  std::int64_t elements = 0;
  SHARDTUNE_CHECK(rows >= 0 && columns >= 0 && !__builtin_mul_overflow(rows, columns, &elements),
                  "a matrix of {} x {} elements", rows, columns);
}

std::int64_t RecordLayout::elements_per_record() const { return format_.four_bit() ? kRecordElements : columns_; }

std::int64_t RecordLayout::bytes_per_record() const {
  return format_.four_bit() ? packed_offset() + kRecordElements / 2 : kHeaderBytes + padded(columns_);
}

std::int64_t RecordLayout::num_records() const {
  if (elements() == 0) return 0;
  return format_.four_bit() ? (elements() + kRecordElements - 1) / kRecordElements : rows_;
}

std::int64_t RecordLayout::elements_in(RecordRun run) const {
  SHARDTUNE_CHECK(run.first >= 0 && run.count >= 0 && run.count <= num_records() - run.first, "records {} to {} of {}",
                  run.first, run.first + run.count, num_records());
  const std::int64_t per_record = elements_per_record();
  return std::min(elements(), (run.first + run.count) * per_record) - std::min(elements(), run.first * per_record);
}

std::int64_t RecordLayout::blocks_in(RecordRun run) const {
  return (elements_in(run) + format_.block_size - 1) / format_.block_size;
}

std::int64_t RecordLayout::packed_offset() const {
  return format_.four_bit() ? kHeaderBytes + padded(scale_bytes()) : kHeaderBytes;
}

}  // namespace shardtune::quant
