#include "line_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {
constexpr std::size_t kChunkBytes = 1u << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
}  // namespace

LineReader::LineReader(const std::filesystem::path& file) : file_(file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) fail(ErrorClass::kBadData, "{}: no such file", file.string());
  if (!std::filesystem::is_regular_file(status)) fail(ErrorClass::kBadData, "{}: not a regular file", file.string());
  errno = 0;
  stream_.open(file, std::ios::binary);
  if (!stream_) fail(ErrorClass::kBadData, "{}: cannot open for reading: {}", file.string(), std::strerror(errno));
}

/// Reads one more chunk behind what is left; false at the end of the file.
bool LineReader::fill() {
  if (ended_) return false;
  buffer_.erase(0, at_);
  at_ = 0;
  const std::size_t had = buffer_.size();
  buffer_.resize(had + kChunkBytes);
  stream_.read(buffer_.data() + had, static_cast<std::streamsize>(kChunkBytes));
  const auto got = static_cast<std::size_t>(stream_.gcount());
  buffer_.resize(had + got);
  if (stream_.bad()) fail(ErrorClass::kBadStorage, "{}: reading failed after line {}", file_.string(), number_);
  ended_ = got < kChunkBytes;
  return got > 0;
}

bool LineReader::next() {
  std::size_t searched = 0;  // bytes behind at_ known to hold no line end
  std::size_t end = buffer_.find('\n', at_);
  while (end == std::string::npos) {
    searched = buffer_.size() - at_;
    if (searched > kMaxLineBytes)
      fail(ErrorClass::kBadData, "{} line {}: longer than {} bytes; split the record", file_.string(), number_ + 1,
           kMaxLineBytes);
    if (!fill()) break;
    end = buffer_.find('\n', at_ + searched);
  }
  if (end == std::string::npos && at_ == buffer_.size()) return false;
  line_ = std::string_view(buffer_).substr(at_, end == std::string::npos ? end : end - at_);
  at_ = std::min(buffer_.size(), at_ + line_.size() + 1);
  if (line_.size() > kMaxLineBytes)
    fail(ErrorClass::kBadData, "{} line {}: longer than {} bytes; split the record", file_.string(), number_ + 1,
         kMaxLineBytes);
  if (++number_ == 1 && line_.substr(0, kByteOrderMark.size()) == kByteOrderMark)
    line_.remove_prefix(kByteOrderMark.size());
  if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
  return true;
}

}  // namespace shardtune::data
