#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "shardtune/quant/elements.h"
#include "shardtune/quant/records.h"
#include "shardtune/quant/tables.h"

struct CUstream_st;  // CUDA's own name for what a cudaStream_t points to

// Of the CUDA parts (shardtune_quant_cuda): only built with the CUDA toolkit.
/// The functions of dequantise.h and blockwise.h in device memory, with the same arguments; tests compare the bits where there
/// is a device. They queue their work on `stream` (null: the default stream) and return; memory must live until it is done.
/// Throws Error(kBadNode) when CUDA does not take the work.
namespace shardtune::quant::cuda {

/// `records` and `out` lie at multiples of 16 bytes, as all allocations of CUDA and LibTorch do.
void dequantise(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records, const Elements& out,
                CUstream_st* stream);

void quantise_blockwise(StateCode code, std::span<const float> values, std::span<float> absmax,
                        std::span<std::uint8_t> codes, CUstream_st* stream);
void dequantise_blockwise(StateCode code, std::span<const std::uint8_t> codes, std::span<const float> absmax,
                          std::span<float> values, CUstream_st* stream);

}  // namespace shardtune::quant::cuda
