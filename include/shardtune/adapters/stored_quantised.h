#pragma once
#include <set>
#include <string>

#include "shardtune/io/safetensors.h"
#include "shardtune/model/parameters.h"
#include "shardtune/quant/arrays.h"

/// Weights that bitsandbytes has quantised and Transformers has saved. For a linear M in 4 bits: M.weight (packed, in any
/// storage type), M.weight.absmax, M.weight.quant_map, M.weight.quant_state.bitsandbytes__nf4 (JSON text), with double
/// quantisation M.weight.nested_absmax and M.weight.nested_quant_map. In 8 bits: M.weight (I8), M.SCB, M.weight_format.
namespace shardtune::adapters {

/// Checks that the files hold the parameter in this format, before anything of it is read, and enters the names of all its
/// tensors into `known`. Error(kBadModel) with file, tensor, expected and found.
void check_stored(const io::SafetensorsFolder& folder, const model::Parameter& parameter, const quant::Format& format,
                  std::set<std::string>& known);

/// The records of a run, put together from the files. Reads the run's part of the arrays, and all nested scales.
/// Error(kBadModel) for scales that are not finite.
std::vector<std::byte> read_stored(const io::SafetensorsFolder& folder, const model::Parameter& parameter,
                                   const quant::RecordLayout& layout, quant::RecordRun run);

}  // namespace shardtune::adapters
