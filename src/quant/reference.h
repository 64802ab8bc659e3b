#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "shardtune/quant/blockwise.h"
#include "shardtune/quant/elements.h"
#include "shardtune/quant/records.h"

/// The plain twins: one value at a time, as the format says it. They run where there are no vector instructions, and tests
/// hold the others against them. Arguments are those of the functions of the same name; their sizes were checked.
namespace shardtune::quant::reference {

void quantise_codes(const RecordLayout& layout, RecordRun run, const ConstElements& values, std::span<float> absmax,
                    std::span<std::byte> records);
void quantise_rows(const RecordLayout& layout, RecordRun run, const ConstElements& values,
                   std::span<std::byte> records);
void dequantise(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records, const Elements& out);
void quantise_blockwise(StateCode code, std::span<const float> values, std::span<float> absmax,
                        std::span<std::uint8_t> codes);
void dequantise_blockwise(StateCode code, std::span<const std::uint8_t> codes, std::span<const float> absmax,
                          std::span<float> values);

}  // namespace shardtune::quant::reference
