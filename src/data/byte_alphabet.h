#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace shardtune::data {

/// The alphabet of byte-level BPE: every byte has a printable character that stands for it in tokenizer.json (the space is
/// written "Ġ", the line feed "Ċ"). Source: GPT-2, and ByteLevel of Hugging Face tokenizers.
///
/// The bytes a piece of the vocabulary stands for; nothing when it has a character outside the alphabet.
std::optional<std::string> bytes_of_piece(std::string_view piece);

/// The character that stands for a byte, as UTF-8.
std::string piece_of_byte(unsigned char byte);

}  // namespace shardtune::data
