#pragma once
#include <cstddef>
#include <span>

#include "shardtune/quant/elements.h"
#include "shardtune/quant/records.h"

namespace shardtune::quant {

/// The values of a run of records in fp32, bf16 or fp16. 4-bit: table[code] * absmax in fp32, where double quantisation has
/// absmax = table8[code8] * nested absmax + offset without a fused multiply-add; int8: code * absmax * fp32(1 / 127); then
/// rounded to the nearest of the target type. Bits as bitsandbytes gives them. `records`: run.count records, the run's first
/// one first. `out`: layout.elements_in(run). One thread works; records do not depend on each other.
/// 4-bit results of more than 16 MiB at a multiple of 64 bytes are stored past the caches.
void dequantise(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records, const Elements& out);

/// The whole matrix.
inline void dequantise(const RecordLayout& layout, std::span<const std::byte> records, const Elements& out) {
  dequantise(layout, layout.all_records(), records, out);
}

}  // namespace shardtune::quant
