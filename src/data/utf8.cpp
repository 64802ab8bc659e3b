#include "utf8.h"

namespace shardtune::data {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Length of the well-formed character at offset `i`, 0 when there is none.
std::size_t well_formed_length(std::string_view text, std::size_t i) {
  const unsigned lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned low = 0x80;  // allowed range of the second byte
  unsigned high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;  // overlong
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;  // overlong
    if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  }
  if (length == 0 || i + length > text.size()) return 0;
  if (byte_at(text, i + 1) < low || byte_at(text, i + 1) > high) return 0;
  for (std::size_t k = 2; k < length; ++k)
    if ((byte_at(text, i + k) & 0xC0u) != 0x80u) return 0;
  return length;
}

}  // namespace

std::size_t utf8_error_offset(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t length = well_formed_length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return i;
}

std::size_t utf8_char_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::uint32_t utf8_first(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  const std::size_t length = utf8_char_bytes(text[0]);
  std::uint32_t value = length == 1 ? lead : length == 2 ? lead & 0x1Fu : length == 3 ? lead & 0x0Fu : lead & 0x07u;
  for (std::size_t k = 1; k < length; ++k) value = value << 6 | (byte_at(text, k) & 0x3Fu);
  return value;
}

std::string_view utf8_last(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && (byte_at(text, start) & 0xC0u) == 0x80u) --start;
  return text.substr(start);
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace shardtune::data
