#pragma once
// Private to the io module: the header of a safetensors file, read and checked.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "shardtune/io/safetensors.h"

namespace shardtune::io::detail {

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of an open file of `file_bytes` bytes. Nothing larger than the header is allocated, and
/// that only after its length was checked against the file. Error(kBadModel) with path, tensor name and reason.
SafetensorsHeader read_safetensors_header(int descriptor, std::uint64_t file_bytes, const std::filesystem::path& path);

}  // namespace shardtune::io::detail
