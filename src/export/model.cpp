#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardtune/comm/agree.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"
#include "shardtune/export/carried_files.h"
#include "shardtune/export/export.h"
#include "shardtune/export/full_tensors.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"

namespace shardtune::exporting {
namespace {

/// Rows of the embedding's table.
std::int64_t vocabulary(const std::vector<FullTensor>& tensors) {
  const auto table = std::ranges::find(tensors, "model.embed_tokens.weight", &FullTensor::name);
  SHARDTUNE_CHECK(table != tensors.end(), "a model without an embedding is written");
  return table->value.size(0);
}

/// config.json with the type that the weights now have, in whichever spelling the file uses, and the rows of the vocabulary.
void write_config(const std::filesystem::path& base_folder, const std::filesystem::path& folder, at::ScalarType type,
                  std::int64_t rows) {
  nlohmann::ordered_json config =
      nlohmann::ordered_json::parse(io::read_text_file(base_folder / "config.json", ErrorClass::kBadModel, 1 << 20));
  const char* name = type == at::kFloat ? "float32" : type == at::kHalf ? "float16" : "bfloat16";
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key)) config[key] = name;
  config["vocab_size"] = rows;
  io::write_file_atomic(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace

void write_model(const std::filesystem::path& folder, const std::filesystem::path& base_folder, at::ScalarType type,
                 fsdp::ShardedModel& shards, comm::Communicator& communicator) {
  const std::vector<FullTensor> tensors = gather_trained(shards, communicator, type);
  comm::agree_on_root(communicator, [&] {
    std::vector<io::TensorView> views;
    for (const FullTensor& tensor : tensors) views.push_back(tensor.view(tensor.name));
    io::write_safetensors(folder / "model.safetensors", views, {{"format", "pt"}});
    write_config(base_folder, folder, type, vocabulary(tensors));
  });
}

void write_extras(const std::filesystem::path& folder, const std::filesystem::path& base_folder, bool adapter,
                  const CardFacts& facts) {
  copy_carried_files(base_folder, folder, adapter ? ResultKind::kAdapter : ResultKind::kFullModel);
  std::string card = "---\n";
  card += fmt::format("base_model: {}\n", nlohmann::json(facts.base_model).dump());
  if (adapter) card += "library_name: peft\n";
  card += fmt::format("tags:\n{}- shardtune\n---\n\n", adapter ? "- lora\n" : "");
  card += fmt::format("# {} of {}\n\nTrained with shardtune on {} for {}; mean training loss {:.4f}.\n\n",
                      adapter ? "LoRA adapter" : "Fine-tuned version", escape_control(facts.base_model),
                      escape_control(facts.dataset), counted(facts.steps, "step"), facts.final_loss);
  card += "Options of the run:\n\n```\n" + facts.options_text + "```\n";
  io::write_file_atomic(folder / "README.md", card);
}

}  // namespace shardtune::exporting
