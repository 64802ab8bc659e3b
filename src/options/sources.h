#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "option_table.h"

namespace shardtune::options {

/// A value as it was written somewhere.
struct Given {
  const OptionSpec* spec;
  std::string value;
  std::string source;  ///< as in EffectiveOption
  std::string place;  ///< for messages: "command line", "environment variable X" or "FILE:LINE"
};

/// The options after the sub-command. Both "--name value" and "--name=value"; a boolean may stand alone.
std::vector<Given> read_command_line(const std::vector<std::string>& arguments);

/// SHARDTUNE_<NAME> variables, in the order of `environment` (null-terminated list of "NAME=VALUE", or null).
std::vector<Given> read_environment(const char* const* environment);

/// NAME = VALUE lines of an INI file.
std::vector<Given> read_ini_file(const std::string& path);

/// The row of `name`, which must exist and be allowed in a place of the given scope. Error(kUsage) names `place`, the name
/// as written and the nearest known one, both with `prefix` ("--", or "" in a file) before them.
const OptionSpec& known_option(std::string_view name, Scope scope, const std::string& place, std::string_view prefix);

/// Adds `given`; Error(kUsage) when its option is in the list already.
void add_once(std::vector<Given>& list, Given given);

/// Environment variables that begin with SHARDTUNE_ and belong to the build, the tools or the tests. A name that ends with
/// '*' stands for all names with that beginning.
const std::vector<std::string_view>& tool_variables();

}  // namespace shardtune::options
