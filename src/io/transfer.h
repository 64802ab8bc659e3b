#pragma once
// Private to the io module: file descriptors and transfers that are complete or say why not.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "shardtune/core/error.h"

namespace shardtune::io::detail {

/// Most bytes that one system call or one HDF5 call is asked to move. The kernel itself stops at 2,147,479,552. Tests
/// lower it to see the cutting with small data.
extern std::uint64_t max_piece_bytes;

/// Owns a file descriptor. The destructor ignores the result of close(); writers call close_checked().
class Descriptor {
 public:
  explicit Descriptor(int value = -1) noexcept : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  int get() const noexcept { return value_; }
  int release() noexcept { return std::exchange(value_, -1); }
  /// Error(kBadStorage) when the system reports a late write error.
  void close_checked(const std::filesystem::path& path);

 private:
  int value_;
};

/// What a transfer reached. `error` is an errno value; 0 together with too few bytes means the end of the file.
struct Transfer {
  std::uint64_t bytes = 0;
  int error = 0;
};

Transfer read_at(int descriptor, std::uint64_t offset, std::span<std::byte> out) noexcept;
Transfer write_next(int descriptor, std::span<const std::byte> data) noexcept;
Transfer write_at(int descriptor, std::uint64_t offset, std::span<const std::byte> data) noexcept;

/// The system's words for an errno value.
std::string system_text(int error);

/// Opens a regular file for reading and tells its size. Error(missing_class) when it is not there or is not a regular
/// file, Error(refused_class) when the system refuses for another reason (rights, too many open files).
Descriptor open_regular(const std::filesystem::path& path, ErrorClass missing_class, ErrorClass refused_class,
                        std::uint64_t& size_bytes);

/// A name from a file for a message: in quotes, cut after 200 bytes.
std::string in_quotes(std::string_view name);

}  // namespace shardtune::io::detail
