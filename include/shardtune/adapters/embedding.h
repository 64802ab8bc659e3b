#pragma once
#include <string>

#include "shardtune/adapters/lora.h"
#include "shardtune/model/embedding_adapter.h"

namespace shardtune::adapters {

/// The embedding's adapters, first that of `config` when its modules name model.embed_tokens: x + the sum of scaling * A^T[ids] B^T
/// with A [R, V], which starts at zero, and B [D, R], which starts normally distributed. No dropout. Source: PEFT's Embedding
/// layer. `hosts`, when given, gets the host that takes further ones; the model owns it. Makes null without adapter and hosts. With
/// token_rows of the embedding: single rows that are trained themselves, and no host.
model::EmbeddingAdapterFactory embedding_adapter_factory(const LoraConfig& config,
                                                         const std::shared_ptr<AdapterHosts>& hosts = nullptr);

/// The name of the rows [tokens, width] of a module that token_rows trains, in the order of its list.
std::string token_rows_name(const std::string& module);

}  // namespace shardtune::adapters
