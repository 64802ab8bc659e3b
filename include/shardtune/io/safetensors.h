#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardtune/core/dtype.h"

namespace shardtune::io {

class AtomicFile;

/// One tensor of a safetensors file, as the checked header states it.
struct TensorInfo {
  Dtype dtype{};
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t file_offset = 0;  ///< first byte, counted from the start of the file
  std::uint64_t bytes = 0;

  std::int64_t elements() const;
};

/// A safetensors file whose header was checked completely when it was opened; data is read by ranges on demand, nothing
/// is mapped. Not copyable; reads are thread-safe. Every error is Error(kBadModel) or Error(kBadStorage) with path and
/// tensor name. Source of the rules: the safetensors format, and the limits in docs/limits.md.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Throws when the name is not in the file.
  const TensorInfo& tensor(const std::string& name) const;

  /// Reads out.size() bytes of the tensor from its byte `first_byte` on. Short reads and EINTR are retried; a file that
  /// shrank is an error with path, wanted and got bytes.
  void read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// All weights of a model folder: model.safetensors (taken first when both are there, as Transformers does), or the files
/// that model.safetensors.index.json names. All files are opened and checked by the constructor; missing files are named
/// together in one error, before any weight is read. Index entries must be plain file names; a link must lead to a file of
/// the same folder (or of a download cache's blobs/ when the folder is snapshots/REVISION). A tensor that the index lists
/// must be in the file it names. A tensor that a file holds and the index does not list is left out (see unlisted()); one
/// that the index puts into another file is an error, because two files then claim it.
class SafetensorsFolder {
 public:
  /// `stem` is "model" for models and "adapter_model" for PEFT adapters.
  explicit SafetensorsFolder(const std::filesystem::path& folder, const std::string& stem = "model");

  bool contains(const std::string& name) const { return where_.contains(name); }
  const TensorInfo& tensor(const std::string& name) const;
  std::vector<std::string> names() const;
  void read(const std::string& name, std::uint64_t first_byte, std::span<std::byte> out) const;
  /// The file that holds the tensor, for messages.
  const std::filesystem::path& file_of(const std::string& name) const;
  /// Names that the files hold and the index does not list, in file order: for a notice.
  const std::vector<std::string>& unlisted() const { return unlisted_; }

 private:
  void take_listed(const std::map<std::string, std::string>& weight_map, const std::filesystem::path& index);
  const SafetensorsFile& file(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::size_t> where_;
  std::vector<std::string> unlisted_;
};

/// A tensor to be written; the bytes stay with the caller.
struct TensorView {
  std::string name;
  Dtype dtype{};
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

/// Name, type and shape of a tensor to be written.
struct TensorSpec {
  std::string name;
  Dtype dtype{};
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;
};

/// Writes one safetensors file piece by piece, for files larger than memory. The bytes are those of the reference library:
/// tensors in its order (types from large to small alignment, then names), compact header with __metadata__ first (left
/// out when empty, its keys sorted), padded to 8 bytes with spaces. The file appears when publish() is called. Errors:
/// Error(kBadStorage) with the path.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();

  /// The order in which the bytes of the tensors must be appended.
  const std::vector<TensorSpec>& order() const { return order_; }
  /// The next bytes; a tensor may be cut into any number of pieces.
  void append(std::span<const std::byte> data);
  /// All tensors must have been appended.
  void publish();

 private:
  std::vector<TensorSpec> order_;
  std::unique_ptr<AtomicFile> file_;
  std::uint64_t left_ = 0;  ///< bytes still to be appended
};

/// The same in one call.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace shardtune::io
