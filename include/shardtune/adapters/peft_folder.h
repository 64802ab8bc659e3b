#pragma once
#include <filesystem>
#include <set>
#include <string>

#include "shardtune/adapters/lora.h"
#include "shardtune/adapters/options.h"
#include "shardtune/io/safetensors.h"

namespace shardtune::adapters {

/// The name a parameter of the adapter has in PEFT's files: base_model.model.MODULE.lora_A.weight.
std::string peft_name(const std::string& parameter);

/// The adapter that a PEFT folder's adapter_config.json describes, modules and patterns resolved for the model `config`. Its
/// dropout is the folder's. Kinds that are not computed are refused by name; whatever is wrong is Error(kBadModel).
LoraConfig read_lora_config(const std::filesystem::path& folder, const model::ModelConfig& config);

/// LoRA settings from the options, targets resolved. With --adapter_name_or_path all but dropout comes from the folder's
/// adapter_config.json; `explicitly_set` names the options the user gave, which must then agree with the folder
/// (Error(kUsage) otherwise). What the arithmetic cannot hold is refused: a scale beyond fp32, a
/// dropout that keeps nothing.
LoraConfig make_lora_config(const AdapterOptions& options, const model::ModelConfig& config,
                            const std::set<std::string>& explicitly_set = {});

/// Checks that the folder's adapter tensors are exactly the trainable parameters of the units, names, shapes and types (F32,
/// F16, BF16), before any is read. Error(kBadModel).
void check_adapter_weights(const io::SafetensorsFolder& folder, const std::vector<model::UnitSpec>& units);

}  // namespace shardtune::adapters
