#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "shardtune/data/options.h"
#include "shardtune/data/tokenizer.h"

namespace shardtune::data {

/// What is to be continued.
struct Prompt {
  std::string given;  ///< the record as JSON text, or {"prompt": TEXT}
  std::vector<std::int32_t> ids;
  std::string where;  ///< file and physical line, or --prompt: for messages
  bool conversation = false;  ///< of `messages`: the answer ends with the template's end of a message, too
};

/// Ids of a text: with the post-processor's special tokens, but without a second BOS before a text that begins with one.
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text);

/// A prompt of plain text. Error(kUsage) when it gives no token.
Prompt text_prompt(const std::string& text, const Tokenizer& tokenizer);

/// Reads a JSON Lines file of prompts: each record has either `prompt` (a text, continued as it is) or `messages` (a conversation,
/// rendered by the template with the head of the assistant's next message); an `id` of any kind is kept for the results. Errors
/// name file and physical line, Error(kBadData): another field, both or neither, an empty prompt, a conversation that ends with
/// the assistant's message, no record, and what read_examples() refuses.
std::vector<Prompt> read_prompts(const std::filesystem::path& file, const DataOptions& options,
                                 const Tokenizer& tokenizer);

/// Ids of the tokens that end a text: `eos_token_id` (one or a list) of generation_config.json, else of config.json, else the
/// tokenizer's. Error(kBadModel) when none of them names one, and for an id outside [0, vocabulary).
std::vector<std::int32_t> read_end_ids(const std::filesystem::path& model_folder, const Tokenizer& tokenizer,
                                       std::int64_t vocabulary);

}  // namespace shardtune::data
