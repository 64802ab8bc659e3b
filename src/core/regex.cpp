#define PCRE2_CODE_UNIT_WIDTH 8
#include "shardtune/core/regex.h"

#include <pcre2.h>

#include <array>

namespace shardtune {

struct Regex::Code {
  pcre2_code* handle = nullptr;
  std::string where, shown;  ///< for messages
  ErrorClass error_class{};

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(handle); }
};

namespace {

/// Limits of matches_whole(): a name of 100 letters takes a reasonable pattern some thousand steps. A million is 50 ms.
constexpr std::uint32_t kMaxSteps = 1'000'000, kMaxDepth = 10'000;

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

std::string library_text(int code) {
  std::array<PCRE2_UCHAR, 200> text{};
  if (pcre2_get_error_message(code, text.data(), text.size()) < 0) return fmt::format("PCRE2 error {}", code);
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string shortened(const std::string& pattern) {
  constexpr std::size_t kShown = 200;
  return pattern.size() > kShown ? pattern.substr(0, kShown) + "..." : pattern;
}

}  // namespace

Regex Regex::compile(const std::string& pattern, const std::string& where, ErrorClass error_class) {
  auto code = std::make_shared<Code>();
  code->where = where;
  code->shown = shortened(pattern);
  code->error_class = error_class;
  if (pattern.size() > kMaxBytes)
    fail(error_class, "{}: pattern '{}' has {} bytes, expected at most {}", where, code->shown, pattern.size(),
         kMaxBytes);
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what "." does not match; otherwise set when PCRE2 is built
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->handle = pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get());
  if (code->handle == nullptr)
    fail(error_class, "{}: pattern '{}' cannot be compiled at offset {}: {}", where, code->shown, offset,
         library_text(error));
  // Only speed: without executable memory PCRE2 interprets, with the same matches.
  pcre2_jit_compile(code->handle, PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

bool Regex::can_match_empty() const {
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code_->handle, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  return matches_empty != 0;
}

std::vector<Span> Regex::find_all(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  std::vector<Span> spans;
  std::size_t from = 0;
  while (from < text.size()) {
    // The whole text was checked once; checking it again at every match would take quadratic time.
    int found = pcre2_match(code_->handle, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code_->handle, units(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                          nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      fail(ErrorClass::kBadData, "{}: a text of {} bytes cannot be split from byte {} on: {}", code_->where,
           text.size(), from, library_text(found));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] <= range[0]) break;  // callers refuse patterns that can match the empty string
    spans.push_back({range[0], range[1]});
    from = range[1];
  }
  return spans;
}

bool Regex::matches_whole(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> limits(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(limits.get(), kMaxSteps);
  pcre2_set_depth_limit(limits.get(), kMaxDepth);
  // Not just-in-time, which counts steps in its own way: a pattern that passes on one machine passes on all.
  const int found = pcre2_match(code_->handle, units(text), text.size(), 0,
                                PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NO_JIT, data.get(), limits.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    fail(code_->error_class, "{}: pattern '{}' cannot be compared with '{}': {}; write it simpler", code_->where,
         code_->shown, text, library_text(found));
  return true;
}

}  // namespace shardtune
