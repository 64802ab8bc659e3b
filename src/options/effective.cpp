#include <algorithm>
#include <nlohmann/json.hpp>

#include "option_table.h"
#include "shardtune/core/error.h"
#include "shardtune/options/run_options.h"

namespace shardtune::options {
namespace {

/// False for what the reader of INI files would cut off or refuse: blanks at the ends, a comment's mark, a quote in front.
bool survives_ini(const std::string& value) {
  if (value.empty()) return true;
  if (value.front() == ' ' || value.back() == ' ' || value.front() == '"' || value.front() == '\'') return false;
  for (std::size_t i = 0; i < value.size(); ++i)
    if ((value[i] == '#' || value[i] == ';') && (i == 0 || value[i - 1] == ' ')) return false;
  return true;
}

/// The value for the reader's eye: what happens, where the default alone would not tell.
std::string shown(const EffectiveOption& option) {
  const OptionSpec* spec = find_option(option.name);
  if (option.source == "default" && spec && !spec->default_text.empty()) return std::string(spec->default_text);
  return option.value.empty() ? "-" : option.value;
}

}  // namespace

bool is_given(const EffectiveOption& option) { return option.source != "default" && option.in_effect; }

std::set<std::string> given_names(const std::vector<EffectiveOption>& options) {
  std::set<std::string> names;
  for (const EffectiveOption& option : options)
    if (is_given(option)) names.insert(option.name);
  return names;
}

std::string format_effective(const std::vector<EffectiveOption>& options) {
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  for (const EffectiveOption& option : options) {
    name_width = std::max(name_width, option.name.size());
    // One long path must not push every source out of sight.
    value_width = std::max(value_width, std::min<std::size_t>(shown(option).size(), 40));
  }
  std::string text;
  for (const EffectiveOption& option : options)
    text += fmt::format("  {:<{}}  {:<{}}  ({})\n", option.name, name_width, shown(option), value_width, option.source);
  return text;
}

std::string effective_as_ini(const std::vector<EffectiveOption>& options) {
  std::string text;
  for (const EffectiveOption& option : options) {
    const OptionSpec& spec = *find_option(option.name);
    if (!is_given(option) || !takes("train", spec) || spec.scope != Scope::kEverywhere) continue;
    if (survives_ini(option.value)) text += fmt::format("{} = {}\n", option.name, option.value);
    else text += fmt::format("# {}: no INI file can hold its value; give it on the command line\n", option.name);
  }
  return text;
}

std::string effective_as_json(const std::vector<EffectiveOption>& options) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const EffectiveOption& option : options)
    object[option.name] = {{"value", option.value}, {"source", option.source}};
  return object.dump(2) + "\n";
}

}  // namespace shardtune::options
