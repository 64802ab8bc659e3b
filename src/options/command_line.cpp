#include <boost/program_options.hpp>

#include <algorithm>

#include "shardtune/core/error.h"
#include "sources.h"
#include "value.h"

namespace shardtune::options {
namespace {

namespace po = boost::program_options;

const std::string kPlace = "command line";

bool is_option(std::string_view token) { return token.starts_with("--"); }

/// Options that may stand alone get their value attached: Boost cannot tell "--packing False" from "--packing FILE".
std::vector<std::string> attach_flag_values(const std::vector<std::string>& arguments) {
  std::vector<std::string> joined;
  // What follows a lone "--" are not options.
  const auto end = static_cast<std::size_t>(std::find(arguments.begin(), arguments.end(), "--") - arguments.begin());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& token = arguments[i];
    const OptionSpec* spec = i < end && is_option(token) ? find_option(std::string_view(token).substr(2)) : nullptr;
    const bool may_stand_alone =
        spec && (std::holds_alternative<Flag>(spec->allowed) || std::holds_alternative<PathOrFlag>(spec->allowed));
    if (!may_stand_alone) {
      joined.push_back(token);
    } else if (i + 1 < arguments.size() && !is_option(arguments[i + 1])) {
      joined.push_back(token + "=" + arguments[++i]);
    } else {
      joined.push_back(token + "=True");
    }
  }
  return joined;
}

po::options_description describe_all() {
  po::options_description description;
  for (const OptionSpec& spec : option_table())
    description.add_options()(std::string(spec.name).c_str(), po::value<std::string>());
  return description;
}

std::vector<po::option> split(const std::vector<std::string>& arguments) {
  const po::options_description description = describe_all();
  // No abbreviations and no one-letter options: "--lora" must not become "--lora_r".
  const int style = po::command_line_style::allow_long | po::command_line_style::long_allow_adjacent |
                    po::command_line_style::long_allow_next;
  try {
    return po::command_line_parser(attach_flag_values(arguments))
        .options(description)
        .style(style)
        .allow_unregistered()
        .run()
        .options;
  } catch (const po::error& error) {
    fail(ErrorClass::kUsage, "{}: {}; write --name value or --name=value", kPlace, error.what());
  }
}

}  // namespace

std::vector<Given> read_command_line(const std::vector<std::string>& arguments) {
  std::vector<Given> list;
  for (const po::option& option : split(arguments)) {
    const std::string value = option.value.empty() ? "" : option.value.front();
    if (option.position_key >= 0) {
      fail(ErrorClass::kUsage, "{}: unexpected argument '{}'; options are written --name value or --name=value", kPlace,
           value);
    }
    const OptionSpec& spec = known_option(option.string_key, Scope::kCommandLineOnly, kPlace, "--");
    // In the form of two tokens the second one is never an option: --output_dir --packing lacks a folder.
    if (option.original_tokens.size() > 1 && is_option(value)) {
      fail(ErrorClass::kUsage,
           "{}: option {} has no value; expected {} (a value that begins with -- is written --{}=VALUE)", kPlace,
           spec.name, allowed_text(spec), spec.name);
    }
    add_once(list, Given{&spec, Origin::kCommandLine, value, kPlace, kPlace});
  }
  return list;
}

}  // namespace shardtune::options
