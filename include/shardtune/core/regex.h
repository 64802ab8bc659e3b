#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardtune/core/error.h"

namespace shardtune {

/// Part of a text in bytes, [begin, end).
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A compiled Unicode pattern in PCRE2's spelling (just-in-time where the machine allows). Immutable, thread-safe. Letters and
/// digits are those of the Unicode version PCRE2 was built with (14 in PCRE2 10.42). Patterns may come from anyone: their
/// length and nesting are limited, and a search that takes too long ends with an error.
class Regex {
 public:
  static constexpr std::size_t kMaxBytes = 65536;
  static constexpr std::uint32_t kMaxNesting = 250;

  /// `where` begins every message; Error(error_class) for what cannot be compiled.
  static Regex compile(const std::string& pattern, const std::string& where, ErrorClass error_class);

  /// All matches from left to right that do not overlap. `text` must be well-formed UTF-8; nothing before or after it is
  /// looked at. Error(kBadData) when the search exceeds PCRE2's limits.
  std::vector<Span> find_all(std::string_view text) const;
  bool contains_match(std::string_view text) const { return !find_all(text).empty(); }
  /// Whether the pattern can match all of `text`, as Python's re.fullmatch. For short texts: ends after some milliseconds with
  /// Error(error_class) when the pattern needs more steps than any reasonable one.
  bool matches_whole(std::string_view text) const;
  /// Whether some text could be matched at its start by nothing.
  bool can_match_empty() const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace shardtune
