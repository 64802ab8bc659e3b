#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linear_adapter.h"
#include "shardtune/adapters/embedding.h"
#include "shardtune/model/embedding_adapter.h"

/// Single rows of the embedding, and of the head, that are trained in place of the base's (PEFT's trainable_token_indices). They
/// start as the base's rows.
namespace shardtune::adapters {

/// The embedding's. `adapter` names the adapter they belong to.
std::unique_ptr<model::EmbeddingAdapter> make_token_rows(model::UnitSpec& unit, const model::ModelConfig& config,
                                                         const std::string& adapter,
                                                         const std::vector<std::int64_t>& tokens);

/// The head's, which gives the logits of these tokens. `shared`: the rows are the embedding's, borrowed.
std::unique_ptr<LinearAdapter> make_head_token_rows(model::UnitSpec& unit, const model::LinearSpec& head,
                                                    const std::vector<std::int64_t>& tokens, bool shared);

}  // namespace shardtune::adapters
