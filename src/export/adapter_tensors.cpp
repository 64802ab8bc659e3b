#include "adapter_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "shardtune/adapters/peft_folder.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::exporting {
namespace {

using Shape = std::vector<std::int64_t>;

struct Expected {
  Shape shape;
  bool optional = false;
};

std::map<std::string, Expected> expected_tensors(const AdapterSource& adapter, const model::ModelConfig& config) {
  std::map<std::string, Expected> all;
  for (const std::string& module : adapter.lora.modules) {
    if (!has_low_rank(adapter, module)) continue;
    const ModuleTensors names = module_tensors(module);
    const Shape shape = module_shape(module, config);
    const std::int64_t rank = adapter.lora.rank_of(module);
    // The embedding's product is made transposed.
    const bool table = module == kTableModule;
    all[names.a] = {{rank, table ? shape[0] : shape[1]}};
    all[names.b] = {{table ? shape[1] : shape[0], rank}};
    if (adapter.lora.dora) all[names.magnitude] = {{shape[0]}};
    if (table || module == "lm_head") all[names.base] = {shape, /*optional=*/true};
  }
  for (const std::string& module : adapter.lora.saved_modules)
    all[adapters::peft_name(module + ".weight")] = {module_shape(module, config)};
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

ModuleTensors module_tensors(const std::string& module) {
  const bool table = module == kTableModule;
  const std::string name = adapters::peft_name(module);
  return {.a = name + (table ? ".lora_embedding_A" : ".lora_A.weight"),
          .b = name + (table ? ".lora_embedding_B" : ".lora_B.weight"),
          .magnitude = name + ".lora_magnitude_vector",
          .base = name + ".base_layer.weight"};
}

std::vector<std::int64_t> module_shape(const std::string& module, const model::ModelConfig& config) {
  const std::string last = module.substr(module.rfind('.') + 1);
  const std::int64_t heads = config.heads * config.head_dim, groups = config.kv_heads * config.head_dim;
  if (module == kTableModule || module == "lm_head") return {config.vocab_size, config.hidden_size};
  if (last == "q_proj") return {heads, config.hidden_size};
  if (last == "k_proj" || last == "v_proj") return {groups, config.hidden_size};
  if (last == "o_proj") return {config.hidden_size, heads};
  if (last == "gate_proj" || last == "up_proj") return {config.intermediate_size, config.hidden_size};
  if (last == "down_proj") return {config.hidden_size, config.intermediate_size};
  return {config.hidden_size};  // the norms
}

void check_adapter_tensors(const AdapterSource& adapter, const model::ModelConfig& config) {
  if (adapter.lora.dora && adapter.lora.modules.contains(kTableModule))
    fail(ErrorClass::kBadModel, "{}: DoRA on the embedding cannot be merged", adapter.folder.string());
  std::vector<std::string> missing, extra, others;
  const auto expected = expected_tensors(adapter, config);
  for (const auto& [name, wanted] : expected) {
    if (!adapter.weights.contains(name)) {
      if (!wanted.optional) missing.push_back(name);
      continue;
    }
    const io::TensorInfo& found = adapter.weights.tensor(name);
    if (found.shape != wanted.shape)
      others.push_back(
          fmt::format("{}: [{}] and not [{}]", name, fmt::join(found.shape, ", "), fmt::join(wanted.shape, ", ")));
    else if (!is_weight_type(found.dtype))
      others.push_back(fmt::format("{}: {} and not F32, F16 or BF16", name, dtype_name(found.dtype)));
  }
  for (const std::string& name : adapter.weights.names())
    if (!expected.contains(name)) extra.push_back(name);
  if (missing.empty() && extra.empty() && others.empty()) return;
  fail(ErrorClass::kBadModel, "{}: the adapter does not fit this model and its own adapter_config.json{}{}{}",
       adapter.folder.string(), several(extra, "fit nothing"), several(missing, "missing"),
       several(others, "of another shape or type"));
}

}  // namespace shardtune::exporting
