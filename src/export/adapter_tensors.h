#pragma once
#include <string>

#include "merge_sources.h"

namespace shardtune::exporting {

constexpr const char* kTableModule = "model.embed_tokens";

/// The tensors of one module in an adapter's files, under the names that PEFT gives them.
struct ModuleTensors {
  std::string a,
      b;  ///< lora_A [r, in] and lora_B [out, r]; of the embedding lora_embedding_A [r, V], lora_embedding_B [D, r]
  std::string magnitude;  ///< [out]; DoRA alone
  std::string base;  ///< base_layer.weight: PEFT stores a copy of the base's weight with adapters on embedding or head
};
ModuleTensors module_tensors(const std::string& module);

/// Where an adapter has the trained rows of `module`'s tokens: a tied head's are the embedding's.
std::string token_rows_tensor(const adapters::LoraConfig& lora, const std::string& module);

/// Checks names, shapes and types of the folder's tensors against its adapter_config.json and the model. Error(kBadModel) with
/// the number and the first names of those that fit nothing, are missing or have another shape.
void check_adapter_tensors(const AdapterSource& adapter, const model::ModelConfig& config);

}  // namespace shardtune::exporting
