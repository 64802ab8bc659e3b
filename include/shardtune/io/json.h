#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "shardtune/core/error.h"

namespace shardtune::io {

/// Limits for JSON that comes from outside (RELIABILITY: 1 MiB for config.json, 64 MiB for index and tokenizer).
struct JsonLimits {
  std::uint64_t max_bytes = 64ull << 20;
  int max_depth = 64;
  std::uint64_t max_values = 2'000'000;
};

/// Parses text; `where` names it in messages. Duplicate keys, excess depth or size, invalid UTF-8 and anything but one
/// JSON value are Error(error_class) with position.
nlohmann::json parse_json(std::string_view text, const std::string& where, ErrorClass error_class,
                          const JsonLimits& limits = {});

/// The same for a regular file.
nlohmann::json read_json_file(const std::filesystem::path& path, ErrorClass error_class, const JsonLimits& limits = {});

/// Byte position of the first byte that is not part of valid UTF-8 (overlong forms, surrogates and code points above
/// U+10FFFF are not valid), or std::string_view::npos.
std::size_t find_invalid_utf8(std::string_view text) noexcept;

}  // namespace shardtune::io
