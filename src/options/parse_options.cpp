#include "help.h"
#include "shardtune/core/error.h"
#include "sources.h"
#include "validate.h"
#include "value.h"

namespace shardtune::options {

const OptionSpec& known_option(std::string_view name, Scope scope, const std::string& place, std::string_view prefix) {
  const OptionSpec* spec = find_option(name);
  if (spec && spec->scope <= scope) return *spec;
  if (spec)
    fail(ErrorClass::kUsage, "{}: option {} is not allowed here; give it on the command line (--{})", place, name,
         name);
  const std::string nearest = nearest_option(name);
  fail(ErrorClass::kUsage, "{}: unknown option '{}{}'{}; 'shardtune --help' lists all", place, prefix, name,
       nearest.empty() ? "" : fmt::format(", the nearest known one is '{}{}'", prefix, nearest));
}

void add_once(std::vector<Given>& list, Given given) {
  for (const Given& earlier : list) {
    if (earlier.spec != given.spec) continue;
    fail(ErrorClass::kUsage, "{}: option {} is given twice, '{}' ({}) and '{}'; remove one", given.place,
         given.spec->name, earlier.value, earlier.place, given.value);
  }
  list.push_back(std::move(given));
}

namespace {

/// The sub-command, which comes first.
std::string checked_command(const std::vector<std::string>& arguments) {
  const std::string known = fmt::format("{}", fmt::join(commands(), ", "));
  if (arguments.empty())
    fail(ErrorClass::kUsage, "command line: no command; known commands: {}; --help shows the options", known);
  const std::string& name = arguments.front();
  for (const std::string_view command : commands())
    if (command == name) return name;
  if (name.starts_with("-"))
    fail(ErrorClass::kUsage, "command line: the command comes before '{}'; known commands: {}", name, known);
  fail(ErrorClass::kUsage, "command line: unknown command '{}'; known commands: {}", name, known);
}

/// True when the flag (--help, --version) is on.
bool asked_for(std::string_view flag, const std::vector<Given>& command_line) {
  for (const Given& given : command_line) {
    if (given.spec->name != flag) continue;
    const auto value = parse_boolean(given.value);
    if (!value) {
      fail(ErrorClass::kUsage, "{}: option {}: '{}' is not allowed; expected {}", given.place, flag, given.value,
           allowed_text(*given.spec));
    }
    return *value;
  }
  return false;
}

/// Text for a command line that only asks for one, else "".
std::string answer_to_question(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return "";
  const std::string& first = arguments.front();
  if (arguments.size() == 1 && first == "--help") return help_text();
  if (arguments.size() == 1 && first == "--version") return version_text();
  if (arguments.size() == 1 && first == "help-markdown") return help_markdown();
  return "";
}

/// Values from the weakest to the strongest place.
std::vector<Given> all_given(std::vector<Given> command_line, std::vector<Given> environment) {
  std::vector<Given> all;
  const Given* config = nullptr;
  for (const auto* list : {&environment, &command_line})
    for (const Given& given : *list)
      if (given.spec->name == "config") config = &given;
  if (config) all = read_ini_file(config->value);
  for (auto* list : {&environment, &command_line})
    for (Given& given : *list) all.push_back(std::move(given));
  return all;
}

}  // namespace

ParseResult parse_options(int argc, const char* const* argv, const char* const* environment) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  ParseResult result;
  result.help = answer_to_question(arguments);
  if (!result.help.empty()) return result;

  result.options.command = checked_command(arguments);
  std::vector<Given> command_line = read_command_line({arguments.begin() + 1, arguments.end()});
  if (asked_for("help", command_line)) result.help = help_text();
  else if (asked_for("version", command_line)) result.help = version_text();
  if (!result.help.empty()) return result;

  Winners winners;
  for (Given& given : all_given(std::move(command_line), read_environment(environment))) {
    assign(given, result.options);
    winners.insert_or_assign(given.spec->name, std::move(given));
  }
  check_required(winners, result.options.command);
  check_combinations(winners, result.options);

  for (const OptionSpec& spec : option_table()) {
    if (spec.scope == Scope::kCommandLineOnly) continue;
    const auto found = winners.find(spec.name);
    // Given for another command all the same: listed as without effect.
    if (!takes(result.options.command, spec) && found == winners.end()) continue;
    if (found == winners.end()) {
      result.effective.push_back({std::string(spec.name), value_text(spec, result.options), "default"});
      continue;
    }
    const Given& given = found->second;
    result.effective.push_back({std::string(spec.name),
                                given.in_effect ? value_text(spec, result.options) : given.value, given.source,
                                given.in_effect});
  }
  return result;
}

}  // namespace shardtune::options
