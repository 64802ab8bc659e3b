#pragma once
#include <cstddef>
#include <span>

#include "shardtune/quant/elements.h"
#include "shardtune/quant/records.h"

/// Quantising in steps, so that a rank works on its own records only. The bytes are those of bitsandbytes on a CPU. NaN and
/// infinity are not looked for: the caller refuses weights that are not finite. Records depend on nothing but their own
/// values and what the parameters say, so that runs may be worked on by several threads at once.
namespace shardtune::quant {

/// 4-bit, first step: the absmax of every block of the run and its packed codes. A code is the number of midpoints between
/// neighbouring table values that lie below value * (1 / absmax), all in fp32; a last short block divides instead.
/// `values`: layout.elements_in(run). `absmax`: layout.blocks_in(run). `records`: run.count records, written completely;
/// headers and scales are zero until write_scales().
void quantise_codes(const RecordLayout& layout, RecordRun run, const ConstElements& values, std::span<float> absmax,
                    std::span<std::byte> records);

/// 4-bit, second step: headers and scales of the run's records, written into `records` as the first step left them.
/// `absmax`: that of all blocks of the matrix (layout.num_blocks()), in order. `offset`: the mean of them over the whole
/// matrix with double quantisation, 0 without. The mean is the caller's at::mean over the whole fp32 vector: another order
/// of adding differs in the last place, and then every nested scale does.
void write_scales(const RecordLayout& layout, RecordRun run, std::span<const float> absmax, float offset,
                  std::span<std::byte> records);

/// int8: rows [run.first, run.first + run.count) as round_half_even(value * ((1 / absmax) * 127)) in fp32. A row of zeros,
/// and one so small that this factor is not finite, is coded as zeros.
void quantise_rows(const RecordLayout& layout, RecordRun run, const ConstElements& values,
                   std::span<std::byte> records);

}  // namespace shardtune::quant
