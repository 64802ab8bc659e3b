#include "shardtune/adapters/peft_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/io/json.h"
#include "shardtune/model/weights.h"

namespace shardtune::adapters {
namespace {

using nlohmann::json;

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
/// layers_pattern: without layers_to_transform it selects nothing, but then PEFT refuses the folder as contradicting itself.
void refuse_unknown_kinds(const json& config, const std::string& where) {
  const auto refuse_if = [&](bool bad, const char* key) {
    if (bad)
      fail(ErrorClass::kBadModel, "{}: '{}' is {}; this adapter kind is not supported", where, key, config[key].dump());
  };
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"})
    refuse_if(flag(config, key, where), key);
  for (const char* key :
       {"rank_pattern", "alpha_pattern", "layer_replication", "layers_to_transform", "layers_pattern",
        "modules_to_save", "trainable_token_indices", "target_parameters", "exclude_modules", "alora_invocation_tokens",
        "velora_config", "monteclora_config", "kasa_config", "use_bdlora", "arrow_config"})
    refuse_if(!is_unset(config, key), key);
  refuse_if(config.contains("bias") && config["bias"] != "none", "bias");
  if (config.contains("init_lora_weights") && !starts_from_plain_base(config["init_lora_weights"]))
    fail(ErrorClass::kBadModel,
         "{}: 'init_lora_weights' is {}; only true, false, 'gaussian', 'eva' and 'orthogonal' are supported: another "
         "start changes the base too; save from PEFT with path_initial_model_for_weight_conversion",
         where, config["init_lora_weights"].dump());
}

/// The scale is multiplied in fp32.
void check_scale(const LoraConfig& lora, ErrorClass error_class, const std::string& what) {
  constexpr double kLow = std::numeric_limits<float>::min(), kHigh = std::numeric_limits<float>::max();
  if (lora.scaling() >= kLow && lora.scaling() <= kHigh) return;
  fail(error_class, "{} {} with rank {} makes the adapters' scale {}; expected a scale from {:.3g} to {:.3g} (fp32)",
       what, lora.alpha, lora.rank, lora.scaling(), kLow, kHigh);
}

/// Dropout compares words of 32 bits with p * 2^32: nearer to 1 than this no word would be kept, and no scale makes up for it.
void check_dropout(double dropout) {
  constexpr double kHigh = 1 - 0x1p-32;
  if (dropout >= 0 && dropout <= kHigh) return;
  fail(ErrorClass::kUsage, "--lora_dropout is {}; expected a number from 0 to {}, nearer to 1 nothing is kept", dropout,
       kHigh);
}

std::string targets_text(const json& targets, const std::string& where) {
  if (targets.is_string()) return targets.get<std::string>();
  if (!targets.is_array() || targets.empty())
    fail(ErrorClass::kBadModel, "{}: 'target_modules' is {}, expected names or a pattern", where, targets.dump());
  std::string text;
  for (const json& entry : targets) {
    if (!entry.is_string()) fail(ErrorClass::kBadModel, "{}: 'target_modules' holds {}", where, entry.dump());
    if (!text.empty()) text += ',';
    text += entry.get<std::string>();
  }
  return text;
}

/// The targets of a folder; what is wrong with them is a fault of the folder and not of the option they would come from.
std::set<std::string> folder_targets(const json& targets, const std::string& where, const model::ModelConfig& model) {
  try {
    return resolve_targets(targets_text(targets, where), model);
  } catch (const Error& error) {
    if (error.error_class() != ErrorClass::kUsage) throw;
    const std::string option = "--lora_target_modules";
    std::string reason = error.what();
    if (reason.starts_with(option)) reason.replace(0, option.size(), "'target_modules'");
    fail(ErrorClass::kBadModel, "{}: {}", where, reason);
  }
}

LoraConfig read_adapter_config(const std::filesystem::path& folder, const model::ModelConfig& model) {
  const std::filesystem::path file = folder / "adapter_config.json";
  const std::string where = file.string();
  if (std::filesystem::is_regular_file(folder))
    fail(ErrorClass::kBadModel, "'{}' is a file; --adapter_name_or_path takes the folder of the adapter{}",
         folder.string(), folder.has_parent_path() ? fmt::format(", here '{}'", folder.parent_path().string()) : "");
  const json config = io::read_json_file(file, ErrorClass::kBadModel, {.max_bytes = 1 << 20});
  if (!config.is_object() || !config.contains("peft_type") || config["peft_type"] != "LORA")
    fail(ErrorClass::kBadModel, "{}: peft_type is not LORA", where);
  refuse_unknown_kinds(config, where);
  LoraConfig out;
  if (!config.contains("r") || !config["r"].is_number_integer() || config["r"].get<std::int64_t>() < 1 ||
      config["r"].get<std::int64_t>() > 65536)
    fail(ErrorClass::kBadModel, "{}: 'r' must be an integer from 1 to 65536", where);
  out.rank = config["r"].get<std::int64_t>();
  if (!config.contains("lora_alpha") || !config["lora_alpha"].is_number() || !(config["lora_alpha"].get<double>() > 0))
    fail(ErrorClass::kBadModel, "{}: 'lora_alpha' is {}, expected a number above 0", where,
         config.value("lora_alpha", json()).dump());
  out.alpha = config["lora_alpha"].get<double>();
  out.rank_stabilised = flag(config, "use_rslora", where);
  check_scale(out, ErrorClass::kBadModel, where + ": 'lora_alpha'");
  out.modules = folder_targets(config.value("target_modules", json()), where, model);
  return out;
}

/// A folder's adapter has its rank, scale and targets already: an option that says otherwise would be ignored in silence.
void refuse_contradictions(const AdapterOptions& options, const LoraConfig& folder, const model::ModelConfig& model,
                           const std::set<std::string>& explicitly_set) {
  const auto check = [&](const char* option, bool same, const std::string& wish, const std::string& found) {
    if (!explicitly_set.contains(option) || same) return;
    fail(ErrorClass::kUsage,
         "--{} {} contradicts {}, which says {}; leave the option out, or start without --adapter_name_or_path", option,
         wish, (std::filesystem::path(options.adapter_name_or_path) / "adapter_config.json").string(), found);
  };
  check("lora_r", options.lora_r == folder.rank, std::to_string(options.lora_r), std::to_string(folder.rank));
  check("lora_alpha", options.lora_alpha == folder.alpha, fmt::to_string(options.lora_alpha),
        fmt::to_string(folder.alpha));
  check("use_rslora", options.use_rslora == folder.rank_stabilised, options.use_rslora ? "True" : "False",
        folder.rank_stabilised ? "True" : "False");
  if (!explicitly_set.contains("lora_target_modules")) return;
  const std::set<std::string> wish = resolve_targets(options.lora_target_modules, model);
  check("lora_target_modules", wish == folder.modules, options.lora_target_modules,
        fmt::format("{} modules: {}", folder.modules.size(), fmt::join(folder.modules, " ")));
}

}  // namespace

std::string peft_name(const std::string& parameter) { return "base_model.model." + parameter; }

LoraConfig make_lora_config(const AdapterOptions& options, const model::ModelConfig& config,
                            const std::set<std::string>& explicitly_set) {
  LoraConfig out;
  if (!options.adapter_name_or_path.empty()) {
    out = read_adapter_config(options.adapter_name_or_path, config);
    refuse_contradictions(options, out, config, explicitly_set);
  } else {
    out.rank = options.lora_r;
    out.alpha = options.lora_alpha;
    out.rank_stabilised = options.use_rslora;
    check_scale(out, ErrorClass::kUsage, "--lora_alpha");
    out.modules = resolve_targets(options.lora_target_modules, config);
  }
  check_dropout(options.lora_dropout);
  out.dropout = options.lora_dropout;
  return out;
}

void check_adapter_weights(const io::SafetensorsFolder& folder, const std::vector<model::UnitSpec>& units) {
  std::size_t expected = 0;
  for (const model::UnitSpec& unit : units)
    for (const model::Parameter& parameter : unit.parameters) {
      if (!parameter.trainable) continue;
      ++expected;
      const std::string name = peft_name(parameter.name);
      if (!folder.contains(name)) fail(ErrorClass::kBadModel, "the adapter holds no tensor '{}'", name);
      model::check_tensor(folder, name, parameter.shape, "the model and adapter_config.json ask for");
    }
  if (folder.names().size() != expected)
    fail(ErrorClass::kBadModel, "the adapter holds {} tensors, adapter_config.json asks for {}", folder.names().size(),
         expected);
}

}  // namespace shardtune::adapters
