#pragma once
// Private to the io module: owners for HDF5 identifiers, the library's own error text, stored types.
#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "shardtune/core/dtype.h"

namespace shardtune::io::detail {

/// Owns one HDF5 identifier. The destructor ignores the result of closing; where it matters call close().
template <herr_t (*Close)(hid_t)>
class Hdf5Handle {
 public:
  explicit Hdf5Handle(hid_t id = H5I_INVALID_HID) noexcept : id_(id) {}
  ~Hdf5Handle() {
    if (id_ >= 0) Close(id_);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }

  hid_t get() const noexcept { return id_; }
  explicit operator bool() const noexcept { return id_ >= 0; }
  hid_t release() noexcept { return std::exchange(id_, H5I_INVALID_HID); }
  /// False when the library reports a failure.
  [[nodiscard]] bool close() noexcept { return Close(release()) >= 0; }

 private:
  hid_t id_;
};

using Hdf5FileId = Hdf5Handle<H5Fclose>;
using Hdf5Group = Hdf5Handle<H5Gclose>;
using Hdf5Object = Hdf5Handle<H5Oclose>;
using Hdf5Dataset = Hdf5Handle<H5Dclose>;
using Hdf5Space = Hdf5Handle<H5Sclose>;
using Hdf5Type = Hdf5Handle<H5Tclose>;
using Hdf5Attribute = Hdf5Handle<H5Aclose>;
using Hdf5Properties = Hdf5Handle<H5Pclose>;

/// Attributes above this are refused when written and when read.
constexpr std::uint64_t kMaxAttributeBytes = 65'536;

/// Starts the library once: no printing of errors, no plugins, no exit handler. (After a failed H5Fclose the exit handler
/// of HDF5 1.10 closes a freed file once more and the process dies of SIGSEGV.)
void start_hdf5();

/// The library's own words for the call that failed last: the outermost and the innermost entry of its error stack.
std::string hdf5_text();

/// How a type is stored. `named`: the integer type alone does not tell it, so the dataset has an attribute "dtype".
struct StoredType {
  hid_t type;
  bool named;
};
StoredType stored_type(Dtype dtype);

/// Refuses everything in an open file that this program does not write itself: links other than hard ones, objects
/// reached twice, named types, external, virtual, chunked or filtered data, more than one dimension, types other than
/// plain numbers and fixed text, large attributes. Error(kBadCheckpoint).
void check_hdf5_content(hid_t file, const std::filesystem::path& path, std::uint64_t file_bytes);

}  // namespace shardtune::io::detail
