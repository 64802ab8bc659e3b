#include <fmt/ranges.h>

#include <algorithm>

#include "module_names.h"
#include "shardtune/adapters/lora.h"
#include "shardtune/core/list.h"

namespace shardtune::adapters {
namespace {

constexpr const char* kExclude = "--exclude_modules";
constexpr const char* kLayers = "--layers_to_transform";
constexpr const char* kLayersPattern = "--layers_pattern";

void remove_excluded(std::set<std::string>& modules, const std::string& text, const model::ModelConfig& config) {
  if (text.empty()) return;
  if (!is_name_list(text)) {
    const Regex regex = compile_as_python(kExclude, trimmed(text));
    if (std::erase_if(modules, [&](const std::string& module) { return regex.matches_whole(module); }) == 0)
      fail(ErrorClass::kUsage,
           "{}: the pattern '{}' matches none of the targets; it must match the full name, for example {}", kExclude,
           text, linear_modules(config).front());
    return;
  }
  const std::vector<std::string> known = linear_modules(config);
  for (const std::string& entry : split_list(kExclude, text)) {
    if (std::ranges::none_of(known, [&](const std::string& module) { return is_named(module, entry); }))
      fail(ErrorClass::kUsage, "{}: '{}' matches no linear module; modules have names as {}", kExclude, entry,
           known.front());
    std::erase_if(modules, [&](const std::string& module) { return is_named(module, entry); });
  }
}

/// The first number between two dots of a module's name, when one of the patterns stands before it; "" for none.
std::string layer_of(const std::string& module, const std::vector<Regex>& patterns) {
  if (!patterns.empty() &&
      std::ranges::none_of(patterns, [&](const Regex& pattern) { return pattern.matches_whole(module); }))
    return "";
  for (std::size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1)) {
    const std::size_t end = module.find_first_not_of("0123456789", dot + 1);
    if (end != std::string::npos && end > dot + 1 && module[end] == '.') return module.substr(dot + 1, end - dot - 1);
  }
  return "";
}

void keep_layers(std::set<std::string>& modules, const ModuleSelection& selection, const model::ModelConfig& config) {
  if (selection.layers.empty()) {
    if (!selection.layers_patterns.empty())
      fail(ErrorClass::kUsage, "{} selects nothing without {}; give both, or leave it out", kLayersPattern, kLayers);
    return;
  }
  if (!is_name_list(selection.targets))
    fail(ErrorClass::kUsage,
         "{} goes with a list of names; the pattern '{}' of --lora_target_modules can say the layers itself", kLayers,
         selection.targets);
  for (const std::int64_t layer : selection.layers)
    if (layer < 0 || layer >= config.layers)
      fail(ErrorClass::kUsage, "{}: there is no layer {}; the model has layers 0 to {}", kLayers, layer,
           config.layers - 1);
  std::vector<Regex> patterns;
  for (const std::string& pattern : selection.layers_patterns)
    patterns.push_back(compile_as_python(kLayersPattern, fmt::format(R"((?:.*?\.)?{}\.(?:\d+)\..*)", pattern)));
  std::set<std::string> numbers;
  for (const std::int64_t layer : selection.layers) numbers.insert(std::to_string(layer));
  // As in PEFT a full name is taken as it is, whatever the layers.
  const std::vector<std::string> entries = split_list("--lora_target_modules", selection.targets);
  std::erase_if(modules, [&](const std::string& module) {
    return !numbers.contains(layer_of(module, patterns)) && std::ranges::find(entries, module) == entries.end();
  });
}

}  // namespace

bool is_list_of_modules(const std::string& text) { return is_name_list(text); }

std::vector<std::string> list_of_modules(const std::string& text) { return split_list("modules", text); }

std::set<std::string> resolve_modules(const ModuleSelection& selection, const model::ModelConfig& config) {
  std::set<std::string> modules = resolve_targets(selection.targets, config);
  remove_excluded(modules, selection.excluded, config);
  keep_layers(modules, selection, config);
  if (modules.empty())
    fail(ErrorClass::kUsage, "--lora_target_modules: {}, {} and {} leave no module of '{}'", kExclude, kLayers,
         kLayersPattern, selection.targets);
  return modules;
}

}  // namespace shardtune::adapters
