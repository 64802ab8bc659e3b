#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "check_scale.h"
#include "module_names.h"
#include "patterns.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"

namespace shardtune::adapters {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

bool flag(const json& config, const char* key, const std::string& where) {
  if (!config.contains(key) || config[key].is_null()) return false;
  if (!config[key].is_boolean())
    fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected true or false", where, key, config[key].dump());
  return config[key].get<bool>();
}

/// Missing or what Python takes for false: PEFT then does nothing.
bool is_unset(const json& config, const char* key) {
  return !config.contains(key) || config[key].is_null() || config[key].empty() || config[key] == "";
}

/// How the adapter began is history once its tensors are there, unless the start changed more than the adapter: PiSSA, OLoRA,
/// CorDA, LoftQ and LoRA-GA take something out of the base, so that the folder fits only a base changed in the same way, and
/// MiCA keeps B fixed in training. The starts listed here change A and B alone (PEFT 0.21, tuners/lora/layer.py).
bool starts_from_plain_base(const json& kind) {
  if (kind.is_null() || kind.is_boolean()) return true;
  return kind == "gaussian" || kind == "eva" || kind == "orthogonal";
}

/// Settings of PEFT that change the mathematics and that this program does not compute: refused unless at their neutral value.
void refuse_unknown_kinds(const json& config, const std::string& where) {
  const auto refuse_if = [&](bool bad, const char* key) {
    if (bad)
      fail(ErrorClass::kBadModel, "{}: '{}' is {}; this adapter kind is not supported", where, key, config[key].dump());
  };
  for (const char* key : {"fan_in_fan_out", "lora_bias", "use_qalora"}) refuse_if(flag(config, key, where), key);
  for (const char* key : {"layer_replication", "target_parameters", "alora_invocation_tokens", "velora_config",
                          "monteclora_config", "kasa_config", "use_bdlora", "arrow_config"})
    refuse_if(!is_unset(config, key), key);
  if (config.contains("init_lora_weights") && !starts_from_plain_base(config["init_lora_weights"]))
    fail(ErrorClass::kBadModel,
         "{}: 'init_lora_weights' is {}; only true, false, 'gaussian', 'eva' and 'orthogonal' are supported: another "
         "start changes the base too; save from PEFT with path_initial_model_for_weight_conversion",
         where, config["init_lora_weights"].dump());
}

/// Keys of PEFT 0.21's LoraConfig that are read here, or that say nothing of what is computed once the tensors are there.
const std::set<std::string> kKnownKeys = {
    "peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "bias", "use_rslora",
    "use_dora", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern",
    "alpha_pattern", "modules_to_save", "ensure_weight_tying", "init_lora_weights", "trainable_token_indices",
    // of other programs, of loading, of how the adapter began
    "auto_mapping", "peft_version", "inference_mode", "revision", "runtime_config", "megatron_config", "megatron_core",
    "qalora_group_size", "corda_config", "eva_config", "loftq_config", "lora_ga_config"};

/// A later PEFT may compute something else with a key that is not known yet. At Python's false values it does not.
void refuse_unknown_keys(const json& config, const std::string& where) {
  for (const auto& [key, value] : config.items())
    if (!kKnownKeys.contains(key) && !is_unset(config, key.c_str()) && value != false && value != 0)
      fail(ErrorClass::kBadModel,
           "{}: '{}' is {}; this key is not known here and may change what is computed; take it out if it does not",
           where, key, value.dump());
  if (const json task = config.value("task_type", json()); !task.is_null() && task != "CAUSAL_LM")
    fail(ErrorClass::kBadModel, "{}: 'task_type' is {}; expected CAUSAL_LM, the models here continue texts", where,
         task.dump());
}

/// Calls read(), whose messages name options; from a folder the same faults are those of its keys.
template <typename F>
void name_keys(const std::string& where, F read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.error_class() != ErrorClass::kUsage) throw;
    std::string reason = error.what();
    for (const auto& [option, key] :
         {std::pair("--lora_target_modules", "'target_modules'"), std::pair("--exclude_modules", "'exclude_modules'"),
          std::pair("--layers_to_transform", "'layers_to_transform'"),
          std::pair("--layers_pattern", "'layers_pattern'"), std::pair("--rank_pattern", "'rank_pattern'"),
          std::pair("--alpha_pattern", "'alpha_pattern'"), std::pair("--lora_modules_to_save", "'modules_to_save'"),
          std::pair("--ensure_weight_tying", "'ensure_weight_tying'"), std::pair("--lora_alpha", "'lora_alpha'"),
          std::pair("--trainable_token_indices", "'trainable_token_indices'")})
      for (std::size_t at = reason.find(option); at != std::string::npos; at = reason.find(option))
        reason.replace(at, std::string_view(option).size(), key);
    fail(ErrorClass::kBadModel, "{}: {}", where, reason);
  }
}

/// The entries of a list of texts, or of one text; nothing when the key is unset.
std::vector<std::string> texts(const json& config, const char* key, const std::string& where) {
  if (is_unset(config, key)) return {};
  const json& value = config[key];
  const auto refuse = [&] {
    fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected a list of names", where, key, value.dump());
  };
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) refuse();
  std::vector<std::string> entries;
  for (const json& entry : value) {
    if (!entry.is_string() || entry.get<std::string>().empty()) refuse();
    entries.push_back(entry.get<std::string>());
  }
  return entries;
}

/// target_modules and exclude_modules: a list of names, or a pattern.
std::string names_or_pattern(const json& config, const char* key, const std::string& where) {
  if (is_unset(config, key)) return "";
  const json& value = config[key];
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array())
    fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected names or a pattern", where, key, value.dump());
  const std::vector<std::string> entries = texts(config, key, where);
  for (const std::string& entry : entries)
    if (!is_name_list(entry) || entry.find(',') != std::string::npos)
      fail(ErrorClass::kBadModel, "{}: '{}' holds '{}', which is no name of a module", where, key, entry);
  return fmt::to_string(fmt::join(entries, ","));
}

std::vector<std::int64_t> layer_numbers(const json& config, const std::string& where) {
  const char* const key = "layers_to_transform";
  if (!config.contains(key) || config[key].is_null()) return {};
  const json values = config[key].is_array() ? config[key] : json::array({config[key]});
  std::vector<std::int64_t> layers;
  for (const json& value : values) {
    if (!value.is_number_integer())
      fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected numbers of layers", where, key, config[key].dump());
    layers.push_back(value.get<std::int64_t>());
  }
  return layers;
}

/// A pattern as the options take it. The first key that matches counts, so the order in the file has to stay.
std::string pattern_text(const nlohmann::ordered_json& config, const char* key, const std::string& where) {
  if (!config.contains(key) || config[key].is_null() || config[key].empty()) return "";
  if (!config[key].is_object())
    fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected an object of numbers", where, key, config[key].dump());
  return config[key].dump();
}

void read_rank_and_scale(const json& config, const std::string& where, LoraConfig& out) {
  if (!config.contains("r") || !config["r"].is_number_integer() || config["r"].get<std::int64_t>() < 1 ||
      config["r"].get<std::int64_t>() > 65536)
    fail(ErrorClass::kBadModel, "{}: 'r' must be an integer from 1 to 65536", where);
  out.rank = config["r"].get<std::int64_t>();
  if (!config.contains("lora_alpha") || !config["lora_alpha"].is_number() || !(config["lora_alpha"].get<double>() > 0))
    fail(ErrorClass::kBadModel, "{}: 'lora_alpha' is {}, expected a number above 0", where,
         config.value("lora_alpha", json()).dump());
  out.alpha = config["lora_alpha"].get<double>();
  out.rank_stabilised = flag(config, "use_rslora", where);
  out.dora = flag(config, "use_dora", where);
  out.ties_saved_modules = flag(config, "ensure_weight_tying", where);
  if (config.contains("lora_dropout") && config["lora_dropout"].is_number())
    out.dropout = config["lora_dropout"].get<double>();
  out.bias = is_unset(config, "bias") ? "none" : config["bias"].is_string() ? config["bias"].get<std::string>() : "?";
  if (out.bias != "none" && out.bias != "all" && out.bias != "lora_only")
    fail(ErrorClass::kBadModel, "{}: 'bias' is {}, expected none, all or lora_only", where, config["bias"].dump());
  if (config.contains("base_model_name_or_path") && config["base_model_name_or_path"].is_string())
    out.base_model = config["base_model_name_or_path"].get<std::string>();
}

/// trainable_token_indices: a list, which is the embedding's, or a list for each module.
void read_token_rows(const json& config, const std::string& where, LoraConfig& out) {
  const char* const key = "trainable_token_indices";
  if (is_unset(config, key)) return;
  const json lists = config[key].is_array() ? json{{"embed_tokens", config[key]}} : config[key];
  const auto refuse = [&] {
    fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected numbers of tokens", where, key, config[key].dump());
  };
  if (!lists.is_object()) refuse();
  for (const auto& [module, tokens] : lists.items()) {
    auto& rows = out.token_rows[is_named(kEmbedding, module) ? kEmbedding : module];
    if (!tokens.is_array()) refuse();
    for (const json& token : tokens) {
      if (!token.is_number_integer()) refuse();
      rows.push_back(token.get<std::int64_t>());
    }
  }
}

void read_modules(const json& config, const nlohmann::ordered_json& ordered, const std::string& where,
                  const model::ModelConfig& model, LoraConfig& out) {
  out.selection = {.targets = names_or_pattern(config, "target_modules", where),
                   .excluded = names_or_pattern(config, "exclude_modules", where),
                   .layers = layer_numbers(config, where),
                   .layers_patterns = texts(config, "layers_pattern", where)};
  if (out.selection.targets.empty())
    fail(ErrorClass::kBadModel, "{}: 'target_modules' is {}, expected names or a pattern", where,
         config.value("target_modules", json()).dump());
  out.modules_to_save = texts(config, "modules_to_save", where);
  read_token_rows(config, where, out);
  name_keys(where, [&] {
    out.modules = resolve_modules(out.selection, model);
    apply_saved_modules(out, model);
    apply_token_rows(out, model);
    out.rank_pattern = parse_rank_pattern(pattern_text(ordered, "rank_pattern", where));
    out.alpha_pattern = parse_alpha_pattern(pattern_text(ordered, "alpha_pattern", where));
    apply_patterns(out);
  });
}

}  // namespace

LoraConfig read_lora_config(const std::filesystem::path& folder, const model::ModelConfig& model) {
  const std::filesystem::path file = folder / "adapter_config.json";
  const std::string where = file.string();
  if (std::filesystem::is_regular_file(folder))
    fail(ErrorClass::kBadModel, "'{}' is a file; --adapter_name_or_path takes the folder of the adapter{}",
         folder.string(), folder.has_parent_path() ? fmt::format(", here '{}'", folder.parent_path().string()) : "");
  const std::string text = io::read_text_file(file, ErrorClass::kBadModel, kMaxConfigBytes);
  const json config = io::parse_json(text, where, ErrorClass::kBadModel, {.max_bytes = kMaxConfigBytes});
  if (!config.is_object() || !config.contains("peft_type") || config["peft_type"] != "LORA")
    fail(ErrorClass::kBadModel, "{}: peft_type is not LORA", where);
  refuse_unknown_kinds(config, where);
  refuse_unknown_keys(config, where);
  LoraConfig out;
  read_rank_and_scale(config, where, out);
  read_modules(config, nlohmann::ordered_json::parse(text), where, model, out);
  name_keys(where, [&] { check_scales(out); });
  return out;
}

}  // namespace shardtune::adapters
