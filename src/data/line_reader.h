#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace shardtune::data {

/// Physical lines of a text file, one at a time. Only LF ends a line; a CR before it, and a byte order mark at the start of
/// the file, are dropped. Lines are at most kMaxLineBytes.
class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = 64u << 20;

  /// Error(kBadData) when the file is missing, not a regular file or cannot be opened.
  explicit LineReader(const std::filesystem::path& file);

  /// Moves to the next line; false at the end. Error(kBadData) for a line that is too long, Error(kBadStorage) when reading
  /// fails.
  bool next();
  std::string_view line() const { return line_; }  ///< valid until the next next()
  std::int64_t number() const { return number_; }  ///< from 1

 private:
  bool fill();

  std::filesystem::path file_;
  std::ifstream stream_;
  std::string buffer_;
  std::size_t at_ = 0;  ///< start of what is not yet handed out
  std::string_view line_;
  std::int64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace shardtune::data
