#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardtune/io/safetensors.h"
#include "shardtune/quant/records.h"

/// Weights of the model's files on their way into records, a part at a time.
namespace shardtune::adapters {

/// Elements [first, first + count) of the flattened tensor in `type`, as they are quantised: int8 takes them through fp16
/// (`through_half`), as bitsandbytes does. Error(kBadModel) for what is not finite, there too.
at::Tensor read_values(const io::SafetensorsFolder& base, const std::string& name, std::int64_t first,
                       std::int64_t count, at::ScalarType type, bool through_half);

/// Quantises a run of records; in 4 bits without headers and scales, which quant::write_scales() adds when those of the whole
/// matrix are known. `absmax`: one a block of the run; empty for int8.
void quantise_records(const quant::RecordLayout& layout, quant::RecordRun run, const at::Tensor& values,
                      std::span<float> absmax, std::span<std::byte> records);

/// What double quantisation subtracts from the scales of a matrix: at::mean() in one thread, because with several its order of
/// adding, and so the last place, would depend on their number.
float mean_of_scales(std::vector<float>& absmax);

/// The values of a run of records in `type`, in one dimension. Several threads work.
at::Tensor dequantise_records(const quant::RecordLayout& layout, quant::RecordRun run,
                              std::span<const std::byte> records, at::ScalarType type);

}  // namespace shardtune::adapters
