#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "module_names.h"
#include "shardtune/adapters/lora.h"
#include "shardtune/core/error.h"
#include "shardtune/core/list.h"
#include "shardtune/core/regex.h"

namespace shardtune::adapters {
namespace {

const std::string kOption = "--lora_target_modules";

const std::vector<std::string> kLayerLinears = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                                "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                                "mlp.down_proj"};

/// "all_linear", "all linear", "linear", "all": what is meant by these is sure, but PEFT knows it by one spelling only.
bool means_all_linear(std::string name) {
  std::erase_if(name, [](char c) { return c == '_' || c == '-' || c == ' ' || c == '.'; });
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name == "alllinear" || name == "alllinears" || name == "linear" || name == "all" || name == "alllinearlayers";
}

[[noreturn]] void refuse_entry(const std::string& entry, const model::ModelConfig& config) {
  if (means_all_linear(entry))
    fail(ErrorClass::kUsage,
         "--lora_target_modules: '{}' matches no module; all linear layers but the head are all-linear, alone and with "
         "a hyphen",
         entry);
  for (const std::string& module : other_modules(config))
    if (is_named(module, entry))
      fail(ErrorClass::kUsage,
           "--lora_target_modules: '{}' is not a linear layer (it matches {}); targets are {}, lm_head", entry, module,
           "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, embed_tokens");
  std::vector<std::string> short_names = {"q_proj",  "k_proj",    "v_proj",       "o_proj", "gate_proj",
                                          "up_proj", "down_proj", "embed_tokens", "lm_head"};
  const std::string near = nearest_name(entry, short_names);
  fail(ErrorClass::kUsage, "--lora_target_modules: '{}' matches no module{}; known names: {} (case matters)", entry,
       near.empty() ? "" : fmt::format(", did you mean '{}'?", near), fmt::join(short_names, ", "));
}

std::set<std::string> resolve_pattern(const std::string& pattern, const model::ModelConfig& config) {
  const Regex regex = compile_as_python(kOption, pattern);
  std::set<std::string> found;
  for (const std::string& module : linear_modules(config))
    if (regex.matches_whole(module)) found.insert(module);
  if (regex.matches_whole(kEmbedding)) found.insert(kEmbedding);
  if (found.empty())
    fail(
        ErrorClass::kUsage,
        "--lora_target_modules: the pattern '{}' matches no linear module; it must match the full name, for example {}",
        pattern, linear_modules(config).front());
  return found;
}

}  // namespace

std::vector<std::string> linear_modules(const model::ModelConfig& config) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < config.layers; ++i)
    for (const std::string& part : kLayerLinears) names.push_back(fmt::format("model.layers.{}.{}", i, part));
  names.push_back("lm_head");
  return names;
}

std::vector<std::string> other_modules(const model::ModelConfig& config) {
  std::vector<std::string> names = {kEmbedding, "model.norm"};
  for (std::int64_t i = 0; i < config.layers; ++i)
    for (const char* part : {"input_layernorm", "post_attention_layernorm", "self_attn", "mlp"})
      names.push_back(fmt::format("model.layers.{}.{}", i, part));
  return names;
}

bool is_all_linear(const std::string& targets) {
  std::string lower = targets;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower == "all-linear";
}

std::set<std::string> resolve_targets(const std::string& targets, const model::ModelConfig& config) {
  std::vector<std::string> modules = linear_modules(config);
  if (is_all_linear(targets)) return {modules.begin(), modules.end() - 1};
  modules.emplace_back(kEmbedding);
  if (!is_name_list(targets)) return resolve_pattern(trimmed(targets), config);
  std::set<std::string> found;
  for (const std::string& entry : split_list(kOption, targets)) {
    bool any = false;
    for (const std::string& module : modules)
      if (is_named(module, entry)) {
        found.insert(module);
        any = true;
      }
    if (!any) refuse_entry(entry, config);
  }
  return found;
}

}  // namespace shardtune::adapters
