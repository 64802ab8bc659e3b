#pragma once
#include <algorithm>
#include <cstring>
#include <span>

#include "shardtune/quant/records.h"
#include "table_structs.h"

namespace shardtune::quant {

/// What a header holds; int8 has the row's absmax in the place of the nested one.
struct RecordHeader {
  float absmax = 0;
  float offset = 0;
};

inline RecordHeader read_header(const std::byte* record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof header);
  return header;
}
inline void write_header(std::byte* record, const RecordHeader& header) {
  std::memset(record, 0, kHeaderBytes);
  std::memcpy(record, &header, sizeof header);
}

/// The absmax of a 4-bit record's first `blocks` blocks.
inline void read_scales(const RecordLayout& layout, const std::byte* record, std::int64_t blocks, float* absmax) {
  const std::byte* scales = record + kHeaderBytes;
  if (!layout.format().double_quantisation) {
    std::memcpy(absmax, scales, static_cast<std::size_t>(blocks) * sizeof(float));
    return;
  }
  const RecordHeader header = read_header(record);
  const EightBitTable& table = eight_bit_table(StateCode::kSigned);
  for (std::int64_t i = 0; i < blocks; ++i)
    absmax[i] = nested_scale(table.values[static_cast<unsigned>(scales[i])], header.absmax, header.offset);
}

/// use(bytes of record, its first element counted from the run's, its elements) for every record of the run.
template <typename Bytes, typename Use>
void for_each_record(const RecordLayout& layout, RecordRun run, Bytes* records, Use&& use) {
  const std::int64_t elements = layout.elements_in(run), step = layout.elements_per_record();
  for (std::int64_t i = 0; i < run.count; ++i)
    use(records + i * layout.bytes_per_record(), i * step, std::min(step, elements - i * step));
}

}  // namespace shardtune::quant
