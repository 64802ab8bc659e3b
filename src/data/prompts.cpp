#include "shardtune/data/prompts.h"

#include <nlohmann/json.hpp>

#include "json_fields.h"
#include "messages.h"
#include "record_lines.h"
#include "shardtune/core/error.h"
#include "shardtune/data/chat.h"
#include "shardtune/io/json.h"

namespace shardtune::data {
namespace {

void check_fields(const nlohmann::json& record, const std::string& where) {
  if (!record.is_object())
    fail(ErrorClass::kBadData, "{}: expected a JSON object, found {}", where, record.type_name());
  for (const auto& [name, value] : record.items())
    if (name != "prompt" && name != "messages" && name != "id")
      fail(ErrorClass::kBadData, "{}: field '{}' is not known; expected 'prompt' or 'messages', and 'id' if wanted",
           where, name);
  if (record.contains("prompt") == record.contains("messages"))
    fail(ErrorClass::kBadData, "{}: expected either 'prompt' or 'messages', found {}", where,
         record.contains("prompt") ? "both" : "neither");
}

void check_ids(const Prompt& prompt) {
  if (prompt.ids.empty())
    fail(ErrorClass::kBadData, "{}: the prompt is empty; there is nothing to continue", prompt.where);
}

}  // namespace

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids = tokenizer.encode(text, true);
  const auto bos = tokenizer.bos_id();
  if (bos && ids.size() >= 2 && ids[0] == *bos && ids[1] == *bos && text.starts_with(tokenizer.bos_token()) &&
      !text.substr(tokenizer.bos_token().size()).starts_with(tokenizer.bos_token()))
    ids.erase(ids.begin());
  return ids;
}

Prompt text_prompt(const std::string& text, const Tokenizer& tokenizer) {
  Prompt prompt{
      .given = nlohmann::json{{"prompt", text}}.dump(), .ids = encode_text(tokenizer, text), .where = "--prompt"};
  check_ids(prompt);
  return prompt;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& file, const DataOptions& options,
                                 const Tokenizer& tokenizer) {
  std::vector<Prompt> prompts;
  std::optional<ChatRenderer> renderer;
  for_each_record(file, [&](const nlohmann::json& record, const std::string& where, std::int64_t) {
    check_fields(record, where);
    Prompt prompt{.given = record.dump(), .ids = {}, .where = where, .conversation = record.contains("messages")};
    try {
      if (prompt.conversation) {
        const std::vector<Message> messages = parse_messages(record["messages"], where);
        if (messages.back().role == "assistant")
          fail(ErrorClass::kBadData,
               "{}: the conversation ends with the assistant's message; leave that out to have it written", where);
        if (!renderer) renderer.emplace(tokenizer, options.chat_template_format);
        prompt.ids = tokenizer.encode(renderer->render(messages, /*add_generation_prompt=*/true), false);
      } else {
        prompt.ids = encode_text(tokenizer, text_of(record["prompt"], "'prompt'", where));
      }
    } catch (const Error& error) {
      const std::string message = error.what();
      throw Error(error.error_class(), message.starts_with(where) ? message : where + ": " + message);
    }
    check_ids(prompt);
    prompts.push_back(std::move(prompt));
  });
  if (prompts.empty()) fail(ErrorClass::kBadData, "{}: the file holds no prompt (--prompts)", file.string());
  return prompts;
}

std::vector<std::int32_t> read_end_ids(const std::filesystem::path& model_folder, const Tokenizer& tokenizer,
                                       std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path file = model_folder / name;
    if (!ids.empty() || !std::filesystem::exists(file)) continue;
    const nlohmann::json config = io::read_json_file(file, ErrorClass::kBadModel, {.max_bytes = 1 << 20});
    if (!config.is_object())
      fail(ErrorClass::kBadModel, "{}: expected a JSON object, found {}", file.string(), config.type_name());
    const std::string where = file.string() + ": eos_token_id";
    const auto found = config.find("eos_token_id");
    if (found == config.end() || found->is_null()) continue;
    for (const nlohmann::json& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
      ids.push_back(need_token_id(id, where));
      if (ids.back() >= vocabulary)
        fail(ErrorClass::kBadModel, "{} {} is outside the model's vocabulary of {} rows", where, ids.back(),
             vocabulary);
    }
  }
  if (ids.empty() && tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  if (ids.empty())
    fail(ErrorClass::kBadModel,
         "{}: no token is known that ends a text; give eos_token_id in generation_config.json, or eos_token in "
         "tokenizer_config.json",
         model_folder.string());
  return ids;
}

}  // namespace shardtune::data
