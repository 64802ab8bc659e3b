#include "adapter_tensors.h"

#include "shardtune/adapters/embedding.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/core/error.h"
#include "shardtune/model/llama.h"

namespace shardtune::exporting {
ModuleTensors module_tensors(const std::string& module) {
  const bool table = module == kTableModule;
  const std::string name = adapters::peft_name(module);
  return {.a = name + (table ? ".lora_embedding_A" : ".lora_A.weight"),
          .b = name + (table ? ".lora_embedding_B" : ".lora_B.weight"),
          .magnitude = name + ".lora_magnitude_vector",
          .base = name + ".base_layer.weight"};
}

std::string token_rows_tensor(const adapters::LoraConfig& lora, const std::string& module) {
  return adapters::peft_name(adapters::token_rows_name(lora.ties_token_rows ? kTableModule : module));
}

void check_adapter_tensors(const AdapterSource& adapter, const model::ModelConfig& config) {
  adapters::LoraConfig lora = adapter.lora;
  if (lora.dora && lora.modules.contains(kTableModule))
    fail(ErrorClass::kBadModel, "{}: DoRA on the embedding cannot be merged", adapter.folder.string());
  lora.keeps_originals = true;
  model::LlamaModel model(
      config, adapters::lora_linear_factory(lora), [](const std::string&) { return false; }, /*untie=*/false,
      adapters::embedding_adapter_factory(lora), /*table_pieces=*/1);
  adapters::enter_saved_modules(lora, model.units_for_adapters());
  adapters::check_adapter_weights(adapter.weights, model.units());
}

}  // namespace shardtune::exporting
