#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardtune/core/dtype.h"

namespace shardtune::io {

/// Owns one HDF5 file. Created with the newest format (v110), file locking off, contiguous datasets aligned to 4 MiB when
/// large, no filters. All calls of a process must come from one thread (serial HDF5). The first failed call is latched:
/// close() then throws (a full disk otherwise reports success later). Errors: Error(kBadStorage) while writing,
/// Error(kBadCheckpoint) while reading, with path, object and HDF5's own text.
class Hdf5File {
 public:
  /// A new file; an existing one is an error. A file that is never closed is marked as incomplete and refused by open().
  static Hdf5File create(const std::filesystem::path& path);
  /// Read only; refuses what this class does not write: unclosed files, older formats, external storage, links other than
  /// hard ones, objects with two names, filters, chunked and virtual datasets, more than one dimension, types other than
  /// numbers and fixed text, attributes above 64 KiB.
  static Hdf5File open(const std::filesystem::path& path);
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) noexcept;

  /// One-dimensional dataset; parent groups are made. BF16 and F16 are stored as 16-bit opaque integers with a "dtype"
  /// attribute. Zero elements are legal.
  void write(const std::string& name, Dtype dtype, std::uint64_t elements, std::span<const std::byte> data);
  /// `object` is "/", a dataset or a group; a group that does not exist is made. Text must not end in a zero byte and has at
  /// most 64 KiB; longer text is refused and belongs into a kU8 dataset.
  void write_attribute(const std::string& object, const std::string& name, std::int64_t value);
  void write_attribute(const std::string& object, const std::string& name, double value);
  void write_attribute(const std::string& object, const std::string& name, std::string_view value);

  bool contains(const std::string& name) const;
  struct DatasetInfo {
    Dtype dtype{};
    std::uint64_t elements = 0;
  };
  DatasetInfo info(const std::string& name) const;
  /// Reads elements [first, first + count) into `out` (count * dtype bytes).
  void read(const std::string& name, std::uint64_t first, std::uint64_t count, std::span<std::byte> out) const;
  std::int64_t read_int_attribute(const std::string& object, const std::string& name) const;
  double read_double_attribute(const std::string& object, const std::string& name) const;
  std::string read_string_attribute(const std::string& object, const std::string& name) const;

  /// Flushes, closes, fsyncs. Throws the first latched error.
  void close();

 private:
  explicit Hdf5File(std::filesystem::path path, std::int64_t id, bool writing);
  [[noreturn]] void failed(std::string_view action, const std::string& object) const;
  [[noreturn]] void raise(const std::string& message) const;
  void check_usable(bool to_write) const;
  void make_groups(const std::string& name);
  void write_raw_attribute(const std::string& object, const std::string& name, std::int64_t type, bool empty,
                           const void* value);
  std::int64_t open_attribute(const std::string& object, const std::string& name) const;
  void read_number_attribute(const std::string& object, const std::string& name, std::int64_t type, void* value) const;

  std::filesystem::path path_;
  std::int64_t id_ = -1;
  bool writing_ = false;
  mutable std::string first_error_;  ///< of a failed write; repeated by every later call
};

}  // namespace shardtune::io
