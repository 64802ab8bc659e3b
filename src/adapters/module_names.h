#pragma once
#include <string>

#include "shardtune/core/regex.h"

/// Names of modules as users write them: full names or dotted suffixes in lists (shardtune/core/list.h), and regular
/// expressions. `option` begins every message; what is wrong is Error(kUsage).
namespace shardtune::adapters {

/// Whether `entry` is the module's full name or a dotted suffix of it.
bool is_named(const std::string& module, const std::string& entry);

/// Names and what may stand between them. Anything else makes the whole text one pattern, its commas (as in {1,2}) included:
/// PEFT knows a list of names or a pattern, never a list of patterns.
bool is_name_list(const std::string& text);

/// PEFT reads patterns with Python's re. What both read, but not as the same, is refused; what Python alone reads is an error
/// of PCRE2.
Regex compile_as_python(const std::string& option, const std::string& pattern);

}  // namespace shardtune::adapters
