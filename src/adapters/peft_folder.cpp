#include "shardtune/adapters/peft_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "check_scale.h"
#include "module_names.h"
#include "patterns.h"
#include "shardtune/adapters/start.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"
#include "shardtune/core/list.h"

namespace shardtune::adapters {
namespace {

/// Dropout compares words of 32 bits with p * 2^32: nearer to 1 than this no word would be kept, and no scale makes up for it.
void check_dropout(double dropout) {
  constexpr double kHigh = 1 - 0x1p-32;
  if (dropout >= 0 && dropout <= kHigh) return;
  fail(ErrorClass::kUsage, "--lora_dropout is {}; expected a number from 0 to {}, nearer to 1 nothing is kept", dropout,
       kHigh);
}

/// The numbers of a list such as 0,1,2; `what` each of them is a number of.
std::vector<std::int64_t> parse_numbers(const std::string& option, const char* what, const std::string& text) {
  std::vector<std::int64_t> numbers;
  if (trimmed(text).empty()) return numbers;
  for (const std::string& entry : split_list(option, text)) {
    if (entry.size() > 9 || entry.find_first_not_of("0123456789") != std::string::npos)
      fail(ErrorClass::kUsage, "{}: '{}' is no number of {}; expected for example 0,1,2", option, entry, what);
    numbers.push_back(std::stoll(entry));
  }
  return numbers;
}

ModuleSelection selection_of(const AdapterOptions& options) {
  ModuleSelection selection{.targets = options.lora_target_modules,
                            .excluded = trimmed(options.exclude_modules),
                            .layers = parse_numbers("--layers_to_transform", "a layer", options.layers_to_transform),
                            .layers_patterns = {}};
  if (!trimmed(options.layers_pattern).empty())
    selection.layers_patterns = split_list("--layers_pattern", options.layers_pattern);
  return selection;
}

std::map<std::string, std::vector<std::int64_t>> token_rows_of(const AdapterOptions& options) {
  auto tokens = parse_numbers("--trainable_token_indices", "a token", options.trainable_token_indices);
  if (tokens.empty()) return {};
  return {{kEmbedding, std::move(tokens)}};
}

LoraConfig from_options(const AdapterOptions& options, const model::ModelConfig& model) {
  LoraConfig out;
  out.rank = options.lora_r;
  out.alpha = options.lora_alpha;
  out.rank_stabilised = options.use_rslora;
  out.dora = options.use_dora;
  out.bias = options.lora_bias;
  out.start = options.init_lora_weights;
  if (starts_from_base(out) && out.dora)
    fail(ErrorClass::kUsage,
         "--init_lora_weights {} and --use_dora: this start has no DoRA form here; leave one of them out", out.start);
  out.selection = selection_of(options);
  out.rank_pattern = parse_rank_pattern(options.rank_pattern);
  out.alpha_pattern = parse_alpha_pattern(options.alpha_pattern);
  out.modules = resolve_modules(out.selection, model);
  if (!trimmed(options.lora_modules_to_save).empty())
    out.modules_to_save = split_list("--lora_modules_to_save", options.lora_modules_to_save);
  out.ties_saved_modules = options.ensure_weight_tying;
  apply_saved_modules(out, model);
  out.token_rows = token_rows_of(options);
  apply_token_rows(out, model);
  apply_patterns(out);
  if (const std::string key = unused_key(out); !key.empty())
    fail(ErrorClass::kUsage, "{} matches none of the adapter's modules, as {}; leave it out", key,
         *out.modules.begin());
  check_scales(out);
  return out;
}

std::string on_off(bool on) { return on ? "True" : "False"; }

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
  check("use_rslora", options.use_rslora == folder.rank_stabilised, on_off(options.use_rslora),
        on_off(folder.rank_stabilised));
  check("use_dora", options.use_dora == folder.dora, on_off(options.use_dora), on_off(folder.dora));
  check("lora_bias", options.lora_bias == folder.bias, options.lora_bias, folder.bias);
  check("init_lora_weights", false, options.init_lora_weights, "the weights themselves");
  const auto check_modules = [&](const char* option, const std::string& wish) {
    if (!explicitly_set.contains(option)) return;
    ModuleSelection selection = selection_of(options);
    // The options that were not given are the folder's.
    if (!explicitly_set.contains("lora_target_modules")) selection.targets = folder.selection.targets;
    if (!explicitly_set.contains("exclude_modules")) selection.excluded = folder.selection.excluded;
    if (!explicitly_set.contains("layers_to_transform")) selection.layers = folder.selection.layers;
    if (!explicitly_set.contains("layers_pattern")) selection.layers_patterns = folder.selection.layers_patterns;
    check(option, resolve_modules(selection, model) == folder.modules, wish,
          fmt::format("{} modules: {}", folder.modules.size(), fmt::join(folder.modules, " ")));
  };
  if (explicitly_set.contains("lora_modules_to_save")) {
    const auto wish = split_list("--lora_modules_to_save", options.lora_modules_to_save);
    check("lora_modules_to_save", resolve_saved_modules(wish, model) == folder.saved_modules,
          options.lora_modules_to_save,
          folder.modules_to_save.empty() ? "none" : fmt::format("{}", fmt::join(folder.modules_to_save, ",")));
  }
  check("ensure_weight_tying", options.ensure_weight_tying == folder.ties_saved_modules,
        on_off(options.ensure_weight_tying), on_off(folder.ties_saved_modules));
  if (explicitly_set.contains("trainable_token_indices")) {
    LoraConfig wish;
    wish.token_rows = token_rows_of(options);
    apply_token_rows(wish, model);
    check("trainable_token_indices", wish.token_rows == folder.token_rows, options.trainable_token_indices,
          folder.token_rows.empty() ? "none" : "other tokens or another order");
  }
  check_modules("lora_target_modules", options.lora_target_modules);
  check_modules("exclude_modules", options.exclude_modules);
  check_modules("layers_to_transform", options.layers_to_transform);
  check_modules("layers_pattern", options.layers_pattern);
  LoraConfig wish = folder;
  wish.rank_pattern = parse_rank_pattern(options.rank_pattern);
  wish.alpha_pattern = parse_alpha_pattern(options.alpha_pattern);
  apply_patterns(wish);
  check("rank_pattern", wish.ranks == folder.ranks, options.rank_pattern, "other ranks");
  check("alpha_pattern", wish.alphas == folder.alphas, options.alpha_pattern, "other alphas");
}

}  // namespace

void check_scales(const LoraConfig& lora) {
  constexpr double kLow = std::numeric_limits<float>::min(), kHigh = std::numeric_limits<float>::max();
  const auto check = [&](const char* option, double scale, double alpha, std::int64_t rank) {
    if (scale >= kLow && scale <= kHigh) return;
    fail(ErrorClass::kUsage,
         "{} {} with rank {} makes the adapters' scale {}; expected a scale from {:.3g} to {:.3g} (fp32)", option,
         alpha, rank, scale, kLow, kHigh);
  };
  check("--lora_alpha", lora.scaling(), lora.alpha, lora.rank);
  for (const auto& [module, alpha] : lora.alphas)
    check("--alpha_pattern", lora.scaling_of(module), alpha, lora.rank_of(module));
  for (const auto& [module, rank] : lora.ranks)
    if (!lora.alphas.contains(module)) check("--lora_alpha", lora.scaling_of(module), lora.alpha, rank);
}

std::string peft_name(const std::string& parameter) { return "base_model.model." + parameter; }

LoraConfig make_lora_config(const AdapterOptions& options, const model::ModelConfig& config,
                            const std::set<std::string>& explicitly_set) {
  LoraConfig out;
  if (options.adapter_name_or_path.empty()) {
    out = from_options(options, config);
  } else {
    out = read_lora_config(options.adapter_name_or_path, config);
    refuse_contradictions(options, out, config, explicitly_set);
  }
  check_dropout(options.lora_dropout);
  out.dropout = options.lora_dropout;
  return out;
}

namespace {

using Shape = std::vector<std::int64_t>;

struct Expected {
  Shape shape;
  bool optional = false;
};

/// Beside an adapter on the embedding or the head PEFT also writes the base's weight itself.
void allow_base_layer(std::map<std::string, Expected>& all, const model::UnitSpec& unit, std::size_t slot) {
  const std::string& name = unit.parameters[slot].name;
  const bool table = name.ends_with(".lora_embedding_A");
  if (!table && name != "lm_head.lora_A.weight") return;
  const Shape &a = unit.parameters[slot].shape, &b = unit.parameters[slot + 1].shape;  // B stands behind A
  const std::string module = name.substr(0, name.rfind(table ? ".lora_embedding_A" : ".lora_A.weight"));
  all[peft_name(module + ".base_layer.weight")] = {table ? Shape{a[1], b[0]} : Shape{b[0], a[1]}, /*optional=*/true};
}

std::map<std::string, Expected> expected_tensors(const std::vector<model::UnitSpec>& units) {
  std::map<std::string, Expected> all;
  for (const model::UnitSpec& unit : units)
    for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot) {
      const model::Parameter& parameter = unit.parameters[slot];
      if (!parameter.trainable) continue;
      // PEFT writes a tied head beside a trained table, this program may not.
      all.emplace(peft_name(parameter.name), Expected{parameter.shape, parameter.borrowed});
      allow_base_layer(all, unit, slot);
    }
  return all;
}

/// "3 tensors fit nothing (first: a, b)", or "".
std::string several(const std::vector<std::string>& names, const std::string& what) {
  if (names.empty()) return "";
  const std::size_t shown = std::min<std::size_t>(names.size(), 3);
  return fmt::format("; {} {} ({}{})", counted(names.size(), "tensor"), what, names.size() > shown ? "first: " : "",
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
}

bool is_weight_type(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16; }

}  // namespace

void check_adapter_weights(const io::SafetensorsFolder& folder, const std::vector<model::UnitSpec>& units) {
  const std::map<std::string, Expected> expected = expected_tensors(units);
  const std::vector<std::string> names = folder.names();
  std::vector<std::string> missing, foreign, others;
  for (const auto& [name, wanted] : expected) {
    if (!folder.contains(name)) {
      if (!wanted.optional) missing.push_back(name);
      continue;
    }
    const io::TensorInfo& found = folder.tensor(name);
    if (found.shape != wanted.shape)
      others.push_back(
          fmt::format("{}: [{}] and not [{}]", name, fmt::join(found.shape, ", "), fmt::join(wanted.shape, ", ")));
    else if (!is_weight_type(found.dtype))
      others.push_back(fmt::format("{}: {} and not F32, F16 or BF16", name, dtype_name(found.dtype)));
  }
  for (const std::string& name : names)
    if (!expected.contains(name)) foreign.push_back(name);
  if (missing.empty() && foreign.empty() && others.empty()) return;
  fail(ErrorClass::kBadModel, "{}: the adapter does not fit the model and its own adapter_config.json{}{}{}",
       names.empty() ? "an empty folder" : folder.file_of(names.front()).string(), several(foreign, "fit nothing"),
       several(missing, "missing"), several(others, "of another shape or type"));
}

}  // namespace shardtune::adapters
