#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/start.h"
#include "shardtune/comm/agree.h"
#include "shardtune/export/export.h"
#include "shardtune/export/full_tensors.h"
#include "shardtune/io/files.h"

namespace shardtune::exporting {
namespace {

using nlohmann::ordered_json;

/// PEFT lists target modules by their last name; "lm_head" and suffixes alike.
std::vector<std::string> target_names(const adapters::LoraConfig& lora) {
  std::set<std::string> names;
  for (const std::string& module : lora.modules) names.insert(module.substr(module.rfind('.') + 1));
  return {names.begin(), names.end()};
}

/// A list of names as it was given, or a pattern. nullptr for none.
ordered_json names_or_pattern(const std::string& text) {
  if (text.empty()) return nullptr;
  if (!adapters::is_list_of_modules(text)) return text;
  return adapters::list_of_modules(text);
}

/// What the user or the folder said, where other keys narrow it down. Else last names, or full ones where last names would say
/// too much since only some layers are adapted.
ordered_json target_modules_json(const adapters::LoraConfig& lora, const std::vector<std::string>& all_linears) {
  const adapters::ModuleSelection& selection = lora.selection;
  const bool narrowed = !selection.excluded.empty() || !selection.layers.empty();
  if (narrowed && adapters::is_all_linear(selection.targets)) {
    std::set<std::string> names;
    for (const std::string& module : all_linears)
      if (module != "lm_head") names.insert(module.substr(module.rfind('.') + 1));
    return names;
  }
  if (narrowed) return names_or_pattern(selection.targets);
  const std::vector<std::string> names = target_names(lora);
  std::size_t meant = lora.modules.contains(adapters::kEmbedding) ? 1 : 0;
  for (const std::string& module : all_linears)
    meant += static_cast<std::size_t>(std::count(names.begin(), names.end(), module.substr(module.rfind('.') + 1)));
  if (meant == lora.modules.size()) return names;
  return std::vector<std::string>(lora.modules.begin(), lora.modules.end());
}

/// A whole number as PEFT's users write it: 16, not 16.0.
ordered_json number(double value) {
  const bool whole = std::abs(value) < 0x1p53 && value == std::floor(value);
  return whole ? ordered_json(static_cast<std::int64_t>(value)) : ordered_json(value);
}

template <typename T>
ordered_json null_if_empty(const std::vector<T>& values) {
  return values.empty() ? ordered_json(nullptr) : ordered_json(values);
}

ordered_json rank_pattern_json(const adapters::LoraConfig& lora) {
  ordered_json pattern = ordered_json::object();
  for (const auto& [key, rank] : lora.rank_pattern) pattern[key] = rank;
  return pattern;
}

ordered_json alpha_pattern_json(const adapters::LoraConfig& lora) {
  ordered_json pattern = ordered_json::object();
  for (const auto& [key, alpha] : lora.alpha_pattern) pattern[key] = number(alpha);
  return pattern;
}

/// How the adapter began, where that left the base as it is; PEFT writes it, too.
ordered_json start_json(const adapters::LoraConfig& lora) {
  if (lora.start == "gaussian") return lora.start;
  return lora.start != "false";
}

/// A list for the embedding alone, or lists by module. A tied head has no rows of its own.
ordered_json token_rows_json(const adapters::LoraConfig& lora) {
  if (lora.token_rows.empty()) return nullptr;
  if (lora.ties_token_rows || (lora.token_rows.size() == 1 && lora.token_rows.contains(adapters::kEmbedding)))
    return lora.token_rows.at(adapters::kEmbedding);
  ordered_json lists = ordered_json::object();
  for (const auto& [module, tokens] : lora.token_rows) lists[module.substr(module.rfind('.') + 1)] = tokens;
  return lists;
}

/// Every key that PEFT 0.21 writes for a LoRA adapter, in its order (sorted by name).
ordered_json adapter_config(const adapters::LoraConfig& lora, const std::string& base_model,
                            const std::vector<std::string>& all_linears) {
  ordered_json config = ordered_json::object();
  config["alora_invocation_tokens"] = nullptr;
  config["alpha_pattern"] = alpha_pattern_json(lora);
  config["arrow_config"] = nullptr;
  config["auto_mapping"] = nullptr;
  config["base_model_name_or_path"] = base_model;
  config["bias"] = lora.bias;
  config["corda_config"] = nullptr;
  config["ensure_weight_tying"] = lora.ties_saved_modules;
  config["eva_config"] = nullptr;
  config["exclude_modules"] = names_or_pattern(lora.selection.excluded);
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["init_lora_weights"] = start_json(lora);
  config["layer_replication"] = nullptr;
  config["layers_pattern"] = null_if_empty(lora.selection.layers_patterns);
  config["layers_to_transform"] = null_if_empty(lora.selection.layers);
  config["loftq_config"] = ordered_json::object();
  config["lora_alpha"] = number(lora.alpha);
  config["lora_bias"] = false;
  config["lora_dropout"] = lora.dropout;
  config["megatron_config"] = nullptr;
  config["megatron_core"] = "megatron.core";
  config["modules_to_save"] = null_if_empty(lora.modules_to_save);
  config["peft_type"] = "LORA";
  config["qalora_group_size"] = 16;
  config["r"] = lora.rank;
  config["rank_pattern"] = rank_pattern_json(lora);
  config["revision"] = nullptr;
  config["target_modules"] = target_modules_json(lora, all_linears);
  config["target_parameters"] = nullptr;
  config["task_type"] = "CAUSAL_LM";
  config["trainable_token_indices"] = token_rows_json(lora);
  config["use_dora"] = lora.dora;
  config["use_qalora"] = false;
  config["use_rslora"] = lora.rank_stabilised;
  return config;
}

/// Those that can have an adapter: not what this one trains whole.
std::vector<std::string> linear_names(const fsdp::ShardedModel& shards, const adapters::LoraConfig& lora) {
  std::vector<std::string> names;
  for (std::size_t unit = 0; unit < shards.units(); ++unit)
    for (const model::Parameter& parameter : shards.spec(unit).parameters)
      if (parameter.shape.size() == 2 && !parameter.trainable && parameter.adapter.empty() &&
          parameter.name.ends_with(".weight") && unit > 0 && parameter.first_row == 0)
        if (std::string module = parameter.name.substr(0, parameter.name.size() - 7);
            !lora.saved_modules.contains(module))
          names.push_back(std::move(module));
  return names;
}

/// Puts the frozen start into the trained adapter: [A; A0], [B, -B0]. What has none, an embedding's adapter, gets zeros. On
/// rank 0.
void put_start_inside(std::vector<FullTensor>& tensors, const std::vector<FullTensor>& start) {
  std::map<std::string, at::Tensor> values;
  for (const FullTensor& one : start) values[one.name] = one.value;
  for (FullTensor& tensor : tensors) {
    const bool a = tensor.name.find(".lora_A") != std::string::npos || tensor.name.ends_with(".lora_embedding_A"),
               b = tensor.name.find(".lora_B") != std::string::npos || tensor.name.ends_with(".lora_embedding_B");
    if (!a && !b) continue;
    const auto found = values.find(tensor.name);
    const at::Tensor other = found == values.end() ? at::zeros_like(tensor.value) : found->second;
    tensor.value = at::cat({tensor.value, a ? other : other.neg()}, a ? 0 : 1);
  }
}

}  // namespace

void write_adapter(const std::filesystem::path& folder, const adapters::LoraConfig& lora, const std::string& base_model,
                   fsdp::ShardedModel& shards, comm::Communicator& communicator, at::ScalarType type) {
  std::vector<FullTensor> tensors = gather_trained(shards, communicator, type);
  std::vector<FullTensor> start;
  const bool has_start = adapters::starts_from_base(lora);
  if (has_start) start = gather_adapter(adapters::start_name(lora.name), shards, communicator, type);
  comm::agree_on_root(communicator, [&] {
    if (has_start) put_start_inside(tensors, start);
    std::vector<io::TensorView> views;
    for (const FullTensor& tensor : tensors) {
      views.push_back(tensor.view(adapters::peft_name(tensor.name)));
      // A tied table goes under both of its names, as PEFT has it.
      if (lora.ties_saved_modules && tensor.name == "model.embed_tokens.weight")
        views.push_back(tensor.view(adapters::peft_name("lm_head.weight")));
    }
    io::write_safetensors(folder / "adapter_model.safetensors", views, {{"format", "pt"}});
    io::write_file_atomic(
        folder / "adapter_config.json",
        adapter_config(has_start ? adapters::with_start_inside(lora) : lora, base_model, linear_names(shards, lora))
                .dump(2) +
            "\n");
  });
}

}  // namespace shardtune::exporting
