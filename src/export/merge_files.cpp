#include "merge_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/export/carried_files.h"
#include "shardtune/io/files.h"
#include "shardtune/quant/options.h"

namespace shardtune::exporting {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

void write_index(const fs::path& folder, const MergePlan& plan) {
  if (plan.files.size() == 1) return;
  std::uint64_t elements = 0;
  nlohmann::json map = nlohmann::json::object();  // sorted by name
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    map[plan.tensors[i].name] = plan.files[plan.places[i].first].name;
    elements += plan.tensors[i].elements();
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", plan.bytes()}}},
                                {"weight_map", map}};
  io::write_file_atomic(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

void write_config(const fs::path& folder, const fs::path& base, const MergePlan& plan) {
  ordered_json config = ordered_json::parse(io::read_text_file(base / "config.json", ErrorClass::kBadModel, 1 << 20));
  config.erase("quantization_config");
  const bool spelled = config.contains("dtype") || config.contains("torch_dtype");
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key) || (!spelled && std::string_view(key) == "dtype"))
      config[key] = torch_type_name(plan.type);
  if (plan.untied) config["tie_word_embeddings"] = false;
  config["vocab_size"] = plan.vocabulary;
  io::write_file_atomic(folder / "config.json", config.dump(2) + "\n");
}

ordered_json record_of(const MergeRequest& request, const MergeSources& sources, const MergePlan& plan,
                       const std::string& fingerprint) {
  ordered_json adapters = ordered_json::array();
  for (const auto& adapter : sources.adapters)
    adapters.push_back({{"path", adapter->folder.string()}, {"weight", adapter->weight.value_or(1)}});
  const BaseForm& form = sources.form;
  return {{"base_model", request.base.string()},
          {"base_fingerprint", fingerprint},
          {"merge_base", request.merge.merge_base},
          {"base", form.describe()},
          {"quantisation", form.format ? ordered_json(quant::describe(*form.format)) : ordered_json()},
          {"adapters", adapters},
          {"dtype", torch_type_name(plan.type)},
          {"untied", plan.untied}};
}

void write_card(const fs::path& folder, const MergeRequest& request, const MergeSources& sources,
                const MergePlan& plan) {
  std::string card = fmt::format(
      "---\nbase_model: {}\ntags:\n- shardtune\n---\n\n# {} with merged adapters\n\nMade with `shardtune merge` in {}. "
      "Added to {}:\n\n",
      nlohmann::json(request.base.string()).dump(), escape_control(request.base.string()), torch_type_name(plan.type),
      sources.form.describe());
  for (const auto& adapter : sources.adapters)
    card += fmt::format("- {}, weight {}\n", escape_control(adapter->folder.string()), adapter->weight.value_or(1));
  if (plan.untied)
    card +=
        "\nThe embeddings of the base are tied; the adapter changes one side only, so the head has a weight of its own "
        "here.\n";
  io::write_file_atomic(folder / "README.md", card);
}

}  // namespace

void write_merge_files(const fs::path& folder, const MergeRequest& request, const MergeSources& sources,
                       const MergePlan& plan, const std::string& fingerprint) {
  write_index(folder, plan);
  write_config(folder, request.base, plan);
  copy_carried_files(request.base, folder, ResultKind::kMergedModel);
  io::write_file_atomic(folder / "merge.json", record_of(request, sources, plan, fingerprint).dump(2) + "\n");
  write_card(folder, request, sources, plan);
}

}  // namespace shardtune::exporting
