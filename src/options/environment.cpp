#include <algorithm>
#include <cctype>

#include "shardtune/core/error.h"
#include "sources.h"

namespace shardtune::options {
namespace {

constexpr std::string_view kPrefix = "SHARDTUNE_";

bool is_tool_variable(std::string_view name) {
  const auto& variables = tool_variables();
  return std::any_of(variables.begin(), variables.end(), [&](const ToolVariable& variable) {
    const std::string_view pattern = variable.name;
    return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
  });
}

std::string changed_case(std::string_view text, int (*change)(int)) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

const std::vector<ToolVariable>& tool_variables() {
  static const std::vector<ToolVariable> variables = {
      {"SHARDTUNE_CACHE",
       "folder where `tools/setup.sh` and the scripts of the demo keep LibTorch, wheels and the demo model (default "
       "`~/.cache/shardtune`)"},
      {"SHARDTUNE_LIBTORCH",
       "folder of a LibTorch of your own (`include/` and `lib/`), for `tools/setup.sh` and CMake"},
      {"SHARDTUNE_LIBTORCH_CUDA", "one with CUDA and of the same version, for the program of the preset `cuda`"},
      {"SHARDTUNE_SKIP_PACKAGES", "`1`: `tools/setup.sh` does not look at the distribution's packages"},
      {"SHARDTUNE_TEST_*", "data, folders and numbers for the tests; `SHARDTUNE_TEST_JOBS` of them run at once"},
      {"SHARDTUNE_BINARY", "the program that the tests of the command line start"},
      {"SHARDTUNE_DEMO_MODEL", "folder of the demo model, for the tests"},
      {"SHARDTUNE_MATRIX", "`all`: the test of the matrix of sharding options runs every case instead of a sample"}};
  return variables;
}

std::vector<Given> read_environment(const char* const* environment) {
  std::vector<Given> list;
  for (; environment && *environment; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || name.size() == entry.size() || is_tool_variable(name)) continue;
    const std::string_view suffix = name.substr(kPrefix.size());
    const std::string place = fmt::format("environment variable {}", name);
    const std::string option = changed_case(suffix, std::tolower);
    // One spelling only: where SHARDTUNE_seed counted too, it could contradict SHARDTUNE_SEED.
    if (find_option(option) && changed_case(suffix, std::toupper) != suffix) {
      fail(ErrorClass::kUsage, "{}: unknown name; the variable of option {} is {}{}", place, option, kPrefix,
           changed_case(option, std::toupper));
    }
    const OptionSpec& spec = known_option(option, Scope::kNotInFile, place, "");
    add_once(list,
             Given{&spec, Origin::kEnvironment, std::string(entry.substr(name.size() + 1)), "environment", place});
  }
  return list;
}

}  // namespace shardtune::options
