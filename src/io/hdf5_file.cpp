#include <array>
#include <cstring>
#include <utility>

#include "hdf5_library.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/io/hdf5.h"
#include "transfer.h"

namespace shardtune::io {

namespace fs = std::filesystem;
using namespace detail;

namespace {

constexpr hsize_t kAlignmentBytes = 4ull << 20;

/// Access properties of every file: newest format, no locks (cluster file systems often have none), system calls of the
/// default driver.
Hdf5Properties access_properties() {
  Hdf5Properties access(H5Pcreate(H5P_FILE_ACCESS));
  const bool fine = access && H5Pset_fapl_sec2(access.get()) >= 0 &&
                    H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
                    H5Pset_file_locking(access.get(), false, true) >= 0 &&
                    // Only what is as large as the alignment itself is aligned: small objects would waste megabytes.
                    H5Pset_alignment(access.get(), kAlignmentBytes, kAlignmentBytes) >= 0 &&
                    H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) >= 0;
  if (!fine) fail(ErrorClass::kInternal, "HDF5 file properties: {}", hdf5_text());
  return access;
}

/// What the first bytes tell, in clearer words than the library's.
void check_superblock(int descriptor, std::uint64_t file_bytes, const fs::path& path) {
  constexpr std::array<unsigned char, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  std::array<unsigned char, 12> start{};
  if (file_bytes >= start.size()) read_exactly(descriptor, 0, std::as_writable_bytes(std::span(start)), path);
  if (std::memcmp(start.data(), kSignature.data(), kSignature.size()) != 0)
    fail(ErrorClass::kBadCheckpoint, "{}: is not an HDF5 file ({} bytes)", path.string(), file_bytes);
  const unsigned version = start[8];
  if (version != 3)
    fail(ErrorClass::kBadCheckpoint, "{}: HDF5 superblock version {}, expected 3; this program did not write the file",
         path.string(), version);
  if (start[11] != 0)
    fail(ErrorClass::kBadCheckpoint,
         "{}: the file was not closed by its writer (killed while writing?) and is incomplete", path.string());
}

}  // namespace

Hdf5File::Hdf5File(fs::path path, std::int64_t id, bool writing) : path_(std::move(path)), id_(id), writing_(writing) {}

Hdf5File Hdf5File::create(const fs::path& path) {
  start_hdf5();
  const Hdf5Properties access = access_properties();
  const Hdf5Properties creation(H5Pcreate(H5P_FILE_CREATE));
  if (!creation || H5Pset_obj_track_times(creation.get(), false) < 0)
    fail(ErrorClass::kInternal, "HDF5 file properties: {}", hdf5_text());
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get());
  if (id < 0) fail(ErrorClass::kBadStorage, "{}: cannot create the file: {}", path.string(), hdf5_text());
  return Hdf5File(path, id, true);
}

Hdf5File Hdf5File::open(const fs::path& path) {
  start_hdf5();
  std::uint64_t file_bytes = 0;
  {
    const Descriptor file = open_regular(path, ErrorClass::kBadCheckpoint, ErrorClass::kBadStorage, file_bytes);
    check_superblock(file.get(), file_bytes, path);
  }
  const Hdf5Properties access = access_properties();
  Hdf5FileId id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()));
  if (!id) fail(ErrorClass::kBadCheckpoint, "{}: cannot open the file: {}", path.string(), hdf5_text());
  check_hdf5_content(id.get(), path, file_bytes);
  return Hdf5File(path, id.release(), false);
}

Hdf5File::Hdf5File(Hdf5File&& other) noexcept
    : path_(std::move(other.path_)), id_(std::exchange(other.id_, -1)), writing_(other.writing_),
      first_error_(std::move(other.first_error_)) {
  other.first_error_.clear();
}

Hdf5File& Hdf5File::operator=(Hdf5File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(id_, other.id_);
  std::swap(writing_, other.writing_);
  std::swap(first_error_, other.first_error_);
  return *this;
}

Hdf5File::~Hdf5File() {
  if (id_ >= 0) H5Fclose(id_);
}

void Hdf5File::failed(std::string_view action, const std::string& object) const {
  raise(fmt::format("{}: cannot {} {}: {}", path_.string(), action, in_quotes(object), hdf5_text()));
}

void Hdf5File::raise(const std::string& message) const {
  if (writing_ && first_error_.empty()) first_error_ = message;
  throw Error(writing_ ? ErrorClass::kBadStorage : ErrorClass::kBadCheckpoint, message);
}

void Hdf5File::check_usable(bool to_write) const {
  if (!first_error_.empty()) throw Error(ErrorClass::kBadStorage, first_error_);
  SHARDTUNE_CHECK(id_ >= 0, "{}: the file is closed", path_.string());
  SHARDTUNE_CHECK(writing_ || !to_write, "{}: the file is open for reading only", path_.string());
}

void Hdf5File::close() {
  const auto latch = [this](bool fine, const char* action) {
    if (fine || !first_error_.empty()) return;
    const std::string text = hdf5_text();
    first_error_ = fmt::format("{}: cannot {} the file: {}", path_.string(), action, text);
  };
  if (id_ >= 0) {
    if (writing_) latch(H5Fflush(id_, H5F_SCOPE_GLOBAL) >= 0, "flush");
    latch(H5Fclose(std::exchange(id_, -1)) >= 0, "close");
    if (writing_ && first_error_.empty()) {
      try {
        fsync_path(path_);
      } catch (const Error& error) {
        first_error_ = error.what();
      }
    }
  }
  if (!first_error_.empty()) throw Error(writing_ ? ErrorClass::kBadStorage : ErrorClass::kBadCheckpoint, first_error_);
}

}  // namespace shardtune::io
