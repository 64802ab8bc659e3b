#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardtune::data {

/// Offset of the first byte that is not part of well-formed UTF-8 (overlong forms, surrogates and values above U+10FFFF
/// are not), or text.size() when all of it is well-formed.
std::size_t utf8_error_offset(std::string_view text);

/// Bytes of the character that starts with `lead` in well-formed UTF-8: 1..4.
std::size_t utf8_char_bytes(char lead);

/// Code point of the first character of non-empty, well-formed UTF-8.
std::uint32_t utf8_first(std::string_view text);

/// The last character of non-empty, well-formed UTF-8, as a part of `text`.
std::string_view utf8_last(std::string_view text);

/// Unicode property White_Space.
bool is_white_space(std::uint32_t code_point);

}  // namespace shardtune::data
