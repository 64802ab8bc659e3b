#pragma once
#include "shardtune/adapters/lora.h"
#include "shardtune/model/embedding_adapter.h"

namespace shardtune::adapters {

/// The embedding's adapter as `config` has it: LoRA when its modules name model.embed_tokens, x + scaling * A^T[ids] B^T with A
/// [R, V], which starts at zero, and B [D, R], which starts normally distributed. Makes null without. No dropout. Source: PEFT's
/// Embedding layer.
model::EmbeddingAdapterFactory embedding_adapter_factory(const LoraConfig& config);

}  // namespace shardtune::adapters
