#include "shardtune/core/error.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace shardtune {

std::string_view error_class_name(ErrorClass error_class) {
  switch (error_class) {
    case ErrorClass::kUsage: return "usage";
    case ErrorClass::kBadModel: return "bad_model";
    case ErrorClass::kBadData: return "bad_data";
    case ErrorClass::kBadStorage: return "bad_storage";
    case ErrorClass::kBadCheckpoint: return "bad_checkpoint";
    case ErrorClass::kBadNode: return "bad_node";
    case ErrorClass::kOutOfMemory: return "out_of_memory";
    case ErrorClass::kNonFinite: return "non_finite";
    case ErrorClass::kCommunication: return "communication";
    case ErrorClass::kInternal: return "internal";
  }
  return "internal";
}

Error::Error(ErrorClass error_class, const std::string& message)
    : std::runtime_error(escape_control(message)), class_(error_class) {}

namespace {

/// Length of the valid UTF-8 sequence at the front of `text`, 0 when it is not valid (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF; what passes here must pass a JSON library, too).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length > text.size()) return 0;
  const unsigned char second_min = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char second_max = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < second_min || byte(1) > second_max) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char c = text.front();
    const auto code = static_cast<unsigned char>(c);
    const std::size_t length = utf8_length(text);
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (c == '\r') out += "\\r";
    else if (code < 0x20 || code == 0x7F || length == 0) out += fmt::format("\\x{:02x}", code);
    else out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same =
          std::tolower(static_cast<unsigned char>(a[i - 1])) == std::tolower(static_cast<unsigned char>(b[j - 1]));
      const std::size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (same ? 0 : 1)});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

namespace detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  throw Error(ErrorClass::kInternal, fmt::format("{}:{}: check '{}' failed: {}", file, line, expression, message));
}

}  // namespace detail
}  // namespace shardtune
