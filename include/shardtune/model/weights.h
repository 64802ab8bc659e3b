#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shardtune/io/safetensors.h"
#include "shardtune/model/parameters.h"

namespace shardtune::model {

/// Reads elements [first, first + out.numel()) of the flattened tensor into `out` (contiguous, floating point), converting
/// the type through a buffer of at most 16 MiB: nobody ever holds a whole tensor. Values that are not finite are
/// Error(kBadModel) with tensor and element.
void read_elements(const io::SafetensorsFolder& folder, const std::string& name, std::int64_t first, at::Tensor out);

/// The same for a parameter's first values as the model's files have them, mean rows included: for those the whole tensor is
/// read.
void read_base_elements(const io::SafetensorsFolder& folder, const Parameter& parameter, std::int64_t first,
                        const at::Tensor& out);

/// Checks shape and type (F32, F16 or BF16) of a tensor that is there. `wish` stands before the expected shape in the message:
/// "config.json asks for". Error(kBadModel) with file, tensor, expected and found.
void check_tensor(const io::SafetensorsFolder& folder, const std::string& name, const std::vector<std::int64_t>& shape,
                  std::string_view wish);

/// Checks names, shapes and types of everything that will be read against the units' parameters, before any weight is read.
/// Tensors of the files that the model does not have are refused, except those known to be redundant (rotary inv_freq, the
/// stored head of a tied model). Parameters that are packed go to `check_packed` when it is given: it enters the names of their
/// tensors. Error(kBadModel) with file, tensor, expected and found.
using CheckPacked = std::function<void(const Parameter& parameter, std::set<std::string>& known)>;
void check_weights(const io::SafetensorsFolder& folder, const std::vector<UnitSpec>& units, bool tied_embeddings,
                   const CheckPacked& check_packed = {});

}  // namespace shardtune::model
