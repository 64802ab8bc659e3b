#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardtune::data {

/// Part of a text in bytes, [begin, end).
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A compiled Unicode pattern (PCRE2, just-in-time where the machine allows). Immutable, thread-safe. Letters and digits are
/// those of the Unicode version PCRE2 was built with (14 in PCRE2 10.42); the reference may know newer ones.
class Regex {
 public:
  /// A pattern in PCRE2's own spelling.
  static Regex from_pcre2(const std::string& pattern, const std::string& where);
  /// A pattern as tokenizer.json holds it, which the reference reads with Oniguruma. Constructs that mean something else in
  /// PCRE2, and patterns that can match the empty string, are refused by name: Error(kBadModel) with `where`.
  static Regex from_tokenizer(const std::string& pattern, const std::string& where);

  /// All matches from left to right that do not overlap. `text` must be well-formed UTF-8; nothing before or after it is
  /// looked at. Error(kBadData) when the search exceeds PCRE2's limits.
  std::vector<Span> find_all(std::string_view text) const;
  bool contains_match(std::string_view text) const { return !find_all(text).empty(); }

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

/// The pattern rewritten for PCRE2; see Regex::from_tokenizer.
std::string translate_pattern(const std::string& pattern, const std::string& where);

}  // namespace shardtune::data
