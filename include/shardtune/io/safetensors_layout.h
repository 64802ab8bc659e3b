#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shardtune/io/safetensors.h"

namespace shardtune::io {

/// Where everything lies in a safetensors file of these tensors, as SafetensorsWriter writes it.
struct SafetensorsLayout {
  std::vector<TensorSpec> order;  ///< of the tensors' bytes
  std::vector<std::uint64_t> offsets;  ///< of the first byte of each, in this order, from the start of the file
  std::string head;  ///< length field and header
  std::uint64_t file_bytes = 0;
};

/// A name given twice or that is not UTF-8 is a mistake of the caller.
SafetensorsLayout lay_out_safetensors(std::vector<TensorSpec> tensors,
                                      const std::map<std::string, std::string>& metadata);

/// A file of known size that several processes fill at once, each at its own places. Errors: Error(kBadStorage) with the path.
class SharedFile {
 public:
  /// Makes a new file of `bytes`, zero behind `head`. One process does this, before the others open it.
  static void create(const std::filesystem::path& path, std::span<const std::byte> head, std::uint64_t bytes);
  explicit SharedFile(const std::filesystem::path& path);
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;

  void write(std::uint64_t offset, std::span<const std::byte> data);
  /// Hands what this process wrote to the disk.
  void finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace shardtune::io
