#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "option_table.h"
#include "sources.h"

namespace shardtune::options {

/// Checks the value of `given` and writes it into its option struct. Numbers must be written out in full: no blanks around
/// them, no '+', integers in digits only ("1e3" is refused), no nan and no inf. Error(kUsage) names place, option, value
/// and what is allowed.
void assign(const Given& given, RunOptions& options);

/// Writes the default into the option struct.
void set_default(const OptionSpec& spec, RunOptions& options);

/// Text form of the current value; parses back to the same value.
std::string value_text(const OptionSpec& spec, RunOptions& options);

/// What is allowed, for example "an integer from 1 to 65536".
std::string allowed_text(const OptionSpec& spec);

/// What --help shows for the value, for example "INTEGER".
std::string_view placeholder(const OptionSpec& spec);

/// True/true/1/yes, False/false/0/no; nothing for other words.
std::optional<bool> parse_boolean(std::string_view text);

}  // namespace shardtune::options
