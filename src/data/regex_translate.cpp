// Rewrites split patterns from Oniguruma's spelling to PCRE2's. Only constructs known to mean the same in both pass; the
// rest is refused, because a pattern read slightly differently gives other tokens without a word.
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "regex.h"
#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {

// White_Space spelled out: PCRE2's \s also takes U+180E.
constexpr std::string_view kSpaces =
    R"(\t-\r\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cs", "Cn"};

constexpr std::array<std::string_view, 7> kGroups = {"(?:", "(?i:", "(?!", "(?=", "(?<!", "(?<=", "(?>"};

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') escape(false);
      else if (c == '[') character_class();
      else if (c == '(') group();
      else if (c == ')') close_group();
      else if (c == '{') interval();
      else if (c == '^' || c == '$') refuse(1);  // line anchors in Oniguruma
      else copy(1);
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::size_t bytes) const {
    fail(ErrorClass::kBadModel, "{}: pattern '{}' uses '{}' at byte {}, which this program cannot follow exactly",
         where_, pattern_, pattern_.substr(at_, bytes), at_);
  }

  void copy(std::size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  bool caseless() const { return std::find(caseless_.begin(), caseless_.end(), true) != caseless_.end(); }

  void group() {
    if (pattern_.substr(at_, 2) != "(?") {
      caseless_.push_back(false);
      return copy(1);
    }
    for (const std::string_view start : kGroups) {
      if (pattern_.substr(at_, start.size()) != start) continue;
      caseless_.push_back(start == "(?i:");
      return copy(start.size());
    }
    refuse(4);
  }

  void close_group() {
    if (!caseless_.empty()) caseless_.pop_back();
    copy(1);
  }

  /// {n}, {n,} or {n,m}; with a further ? or + the two engines differ.
  void interval() {
    const std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) refuse(1);
    const std::string_view body = pattern_.substr(at_ + 1, close - at_ - 1);
    const bool plain = !body.empty() && body[0] != ',' && std::count(body.begin(), body.end(), ',') <= 1 &&
                       body.find_first_not_of("0123456789,") == std::string_view::npos;
    const char next = close + 1 < pattern_.size() ? pattern_[close + 1] : '\0';
    if (!plain || next == '?' || next == '+') refuse(close + 2 - at_);
    copy(close + 1 - at_);
  }

  void character_class() {
    copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse(1);
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') refuse(1);
      if (pattern_.substr(at_, 2) == "&&") refuse(2);
      if (pattern_[at_] == '\\') escape(true);
      else copy(1);
    }
    if (at_ >= pattern_.size()) fail(ErrorClass::kBadModel, "{}: pattern '{}' has a '[' without ']'", where_, pattern_);
    copy(1);
  }

  void escape(bool in_class) {
    if (at_ + 1 >= pattern_.size()) refuse(1);
    const char c = pattern_[at_ + 1];
    if (c == 's' || (c == 'S' && !in_class)) {
      if (!in_class) out_ += c == 's' ? "[" : "[^";
      out_ += kSpaces;
      if (!in_class) out_ += "]";
      at_ += 2;
    } else if (c == 'd') {
      out_ += "\\p{Nd}";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'u') {
      hexadecimal();
    } else if (std::string_view("rntf").find(c) != std::string_view::npos ||
               std::ispunct(static_cast<unsigned char>(c)) != 0) {
      copy(2);
    } else {
      refuse(2);
    }
  }

  void property() {
    const std::size_t close = pattern_.find('}', at_);
    if (pattern_.substr(at_ + 2, 1) != "{" || close == std::string_view::npos) refuse(3);
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const bool cased = name == "Lu" || name == "Ll" || name == "Lt";
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end() || (cased && caseless()))
      refuse(close + 1 - at_);
    copy(close + 1 - at_);
  }

  void hexadecimal() {
    const std::string_view digits = pattern_.substr(at_ + 2, 4);
    const bool four =
        digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (!four) refuse(2);
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> caseless_;  ///< one entry per open group
};

}  // namespace

std::string translate_pattern(const std::string& pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

Regex tokenizer_regex(const std::string& pattern, const std::string& where) {
  Regex regex = Regex::compile(translate_pattern(pattern, where), where, ErrorClass::kBadModel);
  if (regex.can_match_empty())
    fail(ErrorClass::kBadModel, "{}: pattern '{}' can match the empty string, which this program does not follow",
         where, pattern);
  return regex;
}

}  // namespace shardtune::data
