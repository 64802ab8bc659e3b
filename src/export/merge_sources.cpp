#include "merge_sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "adapter_tensors.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/stored_quantised.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"
#include "shardtune/core/list.h"
#include "shardtune/model/llama.h"
#include "shardtune/model/weights.h"

namespace shardtune::exporting {
namespace {

namespace fs = std::filesystem;

/// A folder may have a comma in its name.
std::vector<std::string> adapter_folders(const std::string& text) {
  std::error_code too_long;
  if (fs::exists(text, too_long)) return {text};
  return split_list("--adapter_name_or_path", text);
}

std::vector<double> adapter_weights(const std::string& text, std::size_t adapters) {
  std::vector<double> weights;
  for (const std::string& part : split_list("--adapter_weights", text)) {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || !std::isfinite(value))
      fail(ErrorClass::kUsage, "--adapter_weights '{}': '{}' is not a number", text, part);
    weights.push_back(value);
  }
  if (weights.size() != adapters)
    fail(ErrorClass::kUsage, "--adapter_weights '{}' are {} for {}; give one each", text,
         counted(weights.size(), "weight"), counted(adapters, "adapter"));
  return weights;
}

void open_adapters(const MergeRequest& request, MergeSources& sources) {
  const std::vector<std::string> folders = adapter_folders(request.adapters);
  const bool weighted = folders.size() > 1 || !request.merge.adapter_weights.empty();
  std::vector<double> weights(folders.size(), 1.0);
  if (!request.merge.adapter_weights.empty()) weights = adapter_weights(request.merge.adapter_weights, folders.size());
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const fs::path folder = folders[i];
    if (!fs::is_directory(folder) && !fs::is_regular_file(folder))
      fail(ErrorClass::kBadModel, "adapter folder '{}' does not exist (--adapter_name_or_path)", folder.string());
    adapters::LoraConfig lora = adapters::read_lora_config(folder, sources.config);
    sources.adapters.push_back(
        std::make_unique<AdapterSource>(AdapterSource{.folder = folder,
                                                      .lora = std::move(lora),
                                                      .weights = io::SafetensorsFolder(folder, "adapter_model"),
                                                      .record = read_base_record(folder),
                                                      .weight = weighted ? std::optional(weights[i]) : std::nullopt}));
    check_adapter_tensors(*sources.adapters.back(), sources.config);
  }
}

/// Trained rows take the place of the base's: two adapters may have them of different tokens only.
void check_token_rows(const MergeSources& sources) {
  std::map<std::string, std::set<std::int64_t>> seen;
  for (const auto& adapter : sources.adapters)
    for (const auto& [module, tokens] : adapter->lora.token_rows) {
      if (adapter->weight && *adapter->weight != 1)
        fail(ErrorClass::kBadModel,
             "{}: holds rows of '{}' (trainable_token_indices), which cannot be weighted; leave --adapter_weights out",
             adapter->folder.string(), module);
      for (const std::int64_t token : tokens)
        if (!seen[module].insert(token).second)
          fail(ErrorClass::kBadModel,
               "{}: holds the row of token {} of '{}' (trainable_token_indices), and another adapter does so, too",
               adapter->folder.string(), token, module);
      for (const auto& other : sources.adapters)
        if (touches(*other, module))
          fail(ErrorClass::kBadModel, "{}: holds rows of '{}' (trainable_token_indices), which '{}' changes",
               adapter->folder.string(), module, other->folder.string());
    }
}

/// What has no meaning as a sum is refused: scaled rows, and two copies of one module.
void check_sum(const MergeSources& sources) {
  std::set<std::string> saved;
  for (const auto& adapter : sources.adapters) {
    if (adapter->lora.dora && adapter->weight)
      fail(ErrorClass::kBadModel,
           "{}: is a DoRA adapter, which scales whole rows of the weights and cannot be weighted or added to others; "
           "merge it alone and without --adapter_weights",
           adapter->folder.string());
    for (const std::string& module : adapter->lora.saved_modules) {
      if (adapter->weight && *adapter->weight != 1)
        fail(ErrorClass::kBadModel,
             "{}: holds '{}' whole (modules_to_save), which cannot be weighted; leave --adapter_weights out",
             adapter->folder.string(), module);
      if (!saved.insert(module).second)
        fail(ErrorClass::kBadModel, "{}: holds '{}' whole (modules_to_save), and another adapter does so, too",
             adapter->folder.string(), module);
    }
  }
  check_token_rows(sources);
  for (const auto& adapter : sources.adapters)
    for (const std::string& module : adapter->lora.modules)
      if (saved.contains(module) && !adapter->lora.saved_modules.contains(module))
        fail(ErrorClass::kBadModel, "{}: changes '{}', which another adapter holds whole (modules_to_save)",
             adapter->folder.string(), module);
}

/// New rows are nowhere but in an adapter.
void check_grown(const MergeSources& sources) {
  if (sources.config.vocab_size == sources.config.stored_vocab_size) return;
  for (const char* module : {adapters::kEmbedding, "lm_head"})
    if (std::ranges::none_of(sources.adapters,
                             [&](const auto& adapter) { return adapter->lora.saved_modules.contains(module); }))
      fail(ErrorClass::kUsage,
           "--resize_token_embeddings {}: no adapter holds the new rows of {} (modules_to_save); leave the option out",
           sources.config.vocab_size, module);
}

void check_base(MergeSources& sources) {
  // Only files that are quantised already have packed parameters.
  adapters::LoraConfig none;
  if (sources.form.stored) none.base_format = sources.form.format;
  sources.units = model::LlamaModel(
                      sources.config, adapters::lora_linear_factory(none), [](const std::string&) { return false; },
                      /*untie=*/false, {}, /*table_pieces=*/1)
                      .units();
  model::CheckPacked check_packed;
  if (sources.form.stored)
    check_packed = [&](const model::Parameter& parameter, std::set<std::string>& known) {
      adapters::check_stored(*sources.base, parameter, *sources.form.format, known);
    };
  model::check_weights(*sources.base, sources.units, sources.config.tied_embeddings, check_packed);
}

}  // namespace

MergeSources open_sources(const MergeRequest& request) {
  MergeSources sources;
  sources.config = model::read_config(request.base);
  if (request.vocabulary > 0) model::grow_vocabulary(sources.config, request.vocabulary);
  open_adapters(request, sources);
  check_sum(sources);
  check_grown(sources);
  sources.form = settle_form(request, sources);
  sources.base = std::make_unique<io::SafetensorsFolder>(request.base);
  check_base(sources);
  return sources;
}

void check_fingerprint(const MergeSources& sources, const std::string& base) {
  for (const auto& adapter : sources.adapters)
    if (adapter->record && adapter->record->fingerprint != base)
      fail(ErrorClass::kBadModel,
           "{}: was trained on another base: its fingerprint is {}, that of --model_name_or_path is {}; give the model "
           "of the run",
           adapter->folder.string(), adapter->record->fingerprint, base);
}

bool has_low_rank(const AdapterSource& adapter, const std::string& module) {
  return adapter.lora.modules.contains(module) && !adapter.lora.saved_modules.contains(module);
}

bool touches(const AdapterSource& adapter, const std::string& module) {
  return adapter.lora.modules.contains(module) || adapter.lora.saved_modules.contains(module);
}

}  // namespace shardtune::exporting
