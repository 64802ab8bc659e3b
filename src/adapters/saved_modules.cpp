#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shardtune/adapters/lora.h"
#include "shardtune/core/error.h"

namespace shardtune::adapters {
namespace {

/// Embedding, the layers' linears and norms, the last norm, the head.
std::vector<std::string> modules_with_weights(const model::ModelConfig& config) {
  std::vector<std::string> names = linear_modules(config);
  for (std::int64_t i = 0; i < config.layers; ++i)
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      names.push_back(fmt::format("model.layers.{}.{}", i, norm));
  names.insert(names.end(), {"model.embed_tokens", "model.norm"});
  return names;
}

/// `module` lies in a module whose name ends with `entry`. The model itself and a whole layer are no such modules: who saves
/// them means full fine-tuning.
bool lies_in(const std::string& module, const std::string& entry) {
  for (const char* part : {".mlp", ".self_attn"}) {
    const auto at = module.find(part + std::string("."));
    if (at != std::string::npos && module.substr(0, at + std::string(part).size()).ends_with(entry)) return true;
  }
  return false;
}

}  // namespace

std::set<std::string> resolve_saved_modules(const std::vector<std::string>& entries, const model::ModelConfig& config) {
  const std::vector<std::string> modules = modules_with_weights(config);
  std::set<std::string> found;
  for (const std::string& entry : entries) {
    std::size_t matches = 0;
    if (!entry.empty())
      for (const std::string& module : modules)
        if (module.ends_with(entry) || lies_in(module, entry)) {
          found.insert(module);
          ++matches;
        }
    if (matches == 0)
      fail(ErrorClass::kUsage,
           "--lora_modules_to_save: '{}' is no module with a weight; there are embed_tokens, lm_head, norm and the "
           "linears of the layers, as in q_proj or model.layers.0.mlp.down_proj",
           entry);
  }
  return found;
}

void apply_token_rows(LoraConfig& lora, const model::ModelConfig& config) {
  const char* const option = "--trainable_token_indices";
  for (const auto& [module, tokens] : lora.token_rows) {
    if (module != kEmbedding && module != "lm_head")
      fail(ErrorClass::kUsage, "{}: '{}' has no rows of tokens; embed_tokens and lm_head have", option, module);
    // The trained rows lie in the order of the list.
    std::vector<std::int64_t> sorted = tokens;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
      fail(ErrorClass::kUsage, "{}: token {} stands there twice; name it once", option, *twice);
    for (const std::int64_t token : tokens)
      if (token < 0 || token >= config.stored_vocab_size)
        fail(ErrorClass::kUsage, "{}: there is no token {}; the model has tokens 0 to {}", option, token,
             config.stored_vocab_size - 1);
    if (tokens.empty()) fail(ErrorClass::kUsage, "{}: no token of {} is named; leave it out", option, module);
    if (lora.saved_modules.contains(module) || lora.modules.contains(module))
      fail(ErrorClass::kUsage, "{}: {} has an adapter or is trained whole already; leave one out", option, module);
  }
  if (!config.tied_embeddings || lora.token_rows.empty()) return;
  if (lora.token_rows.contains("lm_head") || lora.saved_modules.contains("lm_head") || lora.modules.contains("lm_head"))
    fail(ErrorClass::kUsage,
         "{}: this model's head is the embedding, so their rows are trained as one; leave lm_head out here and in the "
         "other options",
         option);
  lora.token_rows["lm_head"] = lora.token_rows.at(kEmbedding);
  lora.ties_token_rows = true;
}

void apply_saved_modules(LoraConfig& lora, const model::ModelConfig& config) {
  lora.saved_modules = resolve_saved_modules(lora.modules_to_save, config);
  std::set<std::string>& saved = lora.saved_modules;
  if (lora.ties_saved_modules) {
    if (!config.tied_embeddings)
      fail(ErrorClass::kUsage, "--ensure_weight_tying: the head of this model has a weight of its own; leave it out");
    if (saved.contains(kEmbedding) || saved.contains("lm_head")) saved.insert({kEmbedding, "lm_head"});
  }
  for (const std::string& module : saved) lora.modules.erase(module);
  if (lora.modules.empty() && !saved.empty())
    fail(ErrorClass::kUsage,
         "--lora_modules_to_save takes every module of --lora_target_modules, and an adapter needs one; name another "
         "target, or fewer modules to save");
  if (lora.ties_saved_modules)
    for (const char* module : {kEmbedding, "lm_head"})
      if (lora.modules.contains(module))
        fail(ErrorClass::kUsage,
             "--ensure_weight_tying: an adapter on {} cannot be one with that of its tied copy here; leave the option "
             "out, or have it trained whole by --lora_modules_to_save",
             module);
  if (lora.dora && lora.modules.contains(kEmbedding))
    fail(ErrorClass::kUsage, "--lora_target_modules: an adapter on embed_tokens has no DoRA form here; leave one out");
}

void enter_saved_modules(const LoraConfig& config, std::vector<model::UnitSpec>& units) {
  constexpr std::string_view kWeight = ".weight";
  for (model::UnitSpec& unit : units)
    for (std::size_t slot = 0, count = unit.parameters.size(); slot < count; ++slot) {
      const model::Parameter& own = unit.parameters[slot];
      if (!own.adapter.empty() || !own.name.ends_with(kWeight)) continue;
      if (!config.saved_modules.contains(own.name.substr(0, own.name.size() - kWeight.size()))) continue;
      model::Parameter copy = own;
      copy.adapter = config.name;
      copy.replaces = static_cast<std::int64_t>(slot);
      copy.trainable = true;
      copy.packed_bytes = 0;
      copy.base_name = own.name_in_base();
      copy.borrowed = own.borrowed && config.ties_saved_modules;
      unit.add(std::move(copy));
    }
}

bool needs_whole_tables(const LoraConfig& config) {
  return std::ranges::any_of(
      std::initializer_list<const char*>{kEmbedding, "lm_head", "model.norm"},
      [&](const char* module) { return config.modules.contains(module) || config.saved_modules.contains(module); });
}

}  // namespace shardtune::adapters
