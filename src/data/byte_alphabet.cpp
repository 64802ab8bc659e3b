#include "byte_alphabet.h"

#include <array>
#include <cstdint>

#include "utf8.h"

namespace shardtune::data {
namespace {

bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// Code point of each byte: printable Latin-1 stands for itself, the 68 others follow from U+0100 in order.
std::array<std::uint16_t, 256> make_alphabet() {
  std::array<std::uint16_t, 256> alphabet{};
  std::uint16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte)
    alphabet[byte] = stands_for_itself(byte) ? static_cast<std::uint16_t>(byte) : next++;
  return alphabet;
}

constexpr std::size_t kAlphabetEnd = 0x100 + 68;

/// Byte of each code point below kAlphabetEnd, -1 where none.
std::array<std::int16_t, kAlphabetEnd> make_inverse() {
  std::array<std::int16_t, kAlphabetEnd> inverse{};
  inverse.fill(-1);
  const auto alphabet = make_alphabet();
  for (std::size_t byte = 0; byte < 256; ++byte) inverse[alphabet[byte]] = static_cast<std::int16_t>(byte);
  return inverse;
}

}  // namespace

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  static const auto inverse = make_inverse();
  std::string bytes;
  while (!piece.empty()) {
    const std::uint32_t code_point = utf8_first(piece);
    if (code_point >= kAlphabetEnd || inverse[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(inverse[code_point]));
    piece.remove_prefix(utf8_char_bytes(piece[0]));
  }
  return bytes;
}

std::string piece_of_byte(unsigned char byte) {
  static const auto alphabet = make_alphabet();
  const unsigned code_point = alphabet[byte];
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0u | code_point >> 6), static_cast<char>(0x80u | (code_point & 0x3Fu))};
}

}  // namespace shardtune::data
