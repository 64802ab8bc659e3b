#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "shardtune/adapters/lora.h"
#include "shardtune/comm/communicator.h"
#include "shardtune/fsdp/sharded_model.h"

namespace shardtune::exporting {

/// What a model card tells.
struct CardFacts {
  std::string base_model, dataset;
  std::int64_t steps = 0;
  double final_loss = 0;
  std::string options_text;  ///< the options given by the user, one per line
};

/// Writes the adapter as PEFT does: adapter_model.safetensors (full tensors of `type`) and adapter_config.json. Units are
/// gathered one by one; rank 0 writes. An adapter that started from the base is written as PEFT converts it to plain LoRA: of
/// twice the rank, the frozen start inside. Collective.
void write_adapter(const std::filesystem::path& folder, const adapters::LoraConfig& lora, const std::string& base_model,
                   fsdp::ShardedModel& shards, comm::Communicator& communicator, at::ScalarType type = at::kFloat);

/// Writes a fully fine-tuned model as Transformers does: model.safetensors in `type`, and the base's config.json. Collective.
void write_model(const std::filesystem::path& folder, const std::filesystem::path& base_folder, at::ScalarType type,
                 fsdp::ShardedModel& shards, comm::Communicator& communicator);

/// Copies the carried_files() and writes README.md, the model card. Rank 0 only; no communication.
void write_extras(const std::filesystem::path& folder, const std::filesystem::path& base_folder, bool adapter,
                  const CardFacts& facts);

}  // namespace shardtune::exporting
