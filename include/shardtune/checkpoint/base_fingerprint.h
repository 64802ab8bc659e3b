#pragma once
#include <string>

#include "shardtune/comm/communicator.h"
#include "shardtune/io/safetensors.h"

namespace shardtune::checkpoint {

/// What tells one base model from another, in hexadecimal: XXH3-128 over name, type and shape of every tensor, in the order of
/// the names, and XXH3-128 of each 16,384 of its elements as they are stored. The same for any number of ranks and however
/// the tensors are spread over files. Every rank reads its share of all bytes, a few MB at a time. Collective.
std::string base_fingerprint(const io::SafetensorsFolder& base, comm::Communicator& communicator);

}  // namespace shardtune::checkpoint
