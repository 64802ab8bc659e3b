#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.h"

#include <pcre2.h>

#include <array>

#include "shardtune/core/error.h"

namespace shardtune::data {

struct Regex::Code {
  pcre2_code* handle = nullptr;
  std::string where;  ///< for messages

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(handle); }
};

namespace {

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
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

}  // namespace

Regex Regex::from_pcre2(const std::string& pattern, const std::string& where) {
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what "." does not match; otherwise set when PCRE2 is built
  auto code = std::make_shared<Code>();
  code->where = where;
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->handle = pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get());
  if (code->handle == nullptr)
    fail(ErrorClass::kBadModel, "{}: pattern '{}' cannot be compiled at offset {}: {}", where, pattern, offset,
         library_text(error));
  // Only speed: without executable memory PCRE2 interprets, with the same matches.
  pcre2_jit_compile(code->handle, PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

Regex Regex::from_tokenizer(const std::string& pattern, const std::string& where) {
  Regex regex = from_pcre2(translate_pattern(pattern, where), where);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(regex.code_->handle, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0)
    fail(ErrorClass::kBadModel, "{}: pattern '{}' can match the empty string, which this program does not follow",
         where, pattern);
  return regex;
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
    if (range[1] <= range[0]) break;  // only patterns in PCRE2's own spelling may match the empty string; ours do not
    spans.push_back({range[0], range[1]});
    from = range[1];
  }
  return spans;
}

}  // namespace shardtune::data
