#pragma once
#include <string>

#include "shardtune/core/regex.h"

namespace shardtune::data {

/// A pattern as tokenizer.json holds it, which the reference reads with Oniguruma. Constructs that mean something else in
/// PCRE2, and patterns that can match the empty string, are refused by name: Error(kBadModel) with `where`.
Regex tokenizer_regex(const std::string& pattern, const std::string& where);

/// The pattern rewritten for PCRE2; see tokenizer_regex().
std::string translate_pattern(const std::string& pattern, const std::string& where);

}  // namespace shardtune::data
