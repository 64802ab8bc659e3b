#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "option_table.h"

namespace shardtune::options {

/// Where a value was written; a later one wins.
enum class Origin { kDefault, kFile, kEnvironment, kCommandLine };

/// A value as it was written somewhere.
struct Given {
  const OptionSpec* spec;
  Origin origin;
  std::string value;
  std::string source;  ///< as in EffectiveOption
  std::string place;  ///< for messages: "command line", "environment variable X" or "FILE:LINE"
  bool in_effect = true;  ///< as in EffectiveOption
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

/// An environment variable that begins with SHARDTUNE_ and belongs to the build, the tools or the tests. A name that ends with
/// '*' stands for all names with that beginning.
struct ToolVariable {
  std::string_view name;
  std::string_view meaning;  ///< for docs/options.md
};
const std::vector<ToolVariable>& tool_variables();

}  // namespace shardtune::options
