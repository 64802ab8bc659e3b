#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/options/run_options.h"

namespace shardtune::options {

std::string format_effective(const std::vector<EffectiveOption>& options) {
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  const auto shown = [](const EffectiveOption& option) {
    return option.value.empty() ? std::string("-") : option.value;
  };
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

std::string effective_as_json(const std::vector<EffectiveOption>& options) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const EffectiveOption& option : options)
    object[option.name] = {{"value", option.value}, {"source", option.source}};
  return object.dump(2) + "\n";
}

}  // namespace shardtune::options
