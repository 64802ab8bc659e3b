#include "tokenizer_config.h"

#include <algorithm>
#include <functional>

#include "added_tokens.h"
#include "json_fields.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"

namespace shardtune::data {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 4ull << 20;

/// A token written as text or as {"content": text}; "" when missing or null.
std::string token_text(const nlohmann::json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return "";
  if (found->is_object()) return need_string(*found, "content", where + ": " + key);
  return need_string(config, key, where);
}

/// The template text; of a list of named ones the one called "default".
std::string template_text(const nlohmann::json& config, const std::string& where) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return "";
  if (!found->is_array()) return need_string(config, "chat_template", where);
  for (const nlohmann::json& entry : *found)
    if (need_string(entry, "name", where + ": chat_template") == "default")
      return need_string(entry, "template", where + ": chat_template");
  return "";
}

std::optional<bool> optional_flag(const nlohmann::json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  return flag_or(config, key, false, where);
}

void check_added_tokens(const nlohmann::json& config, const AddedTokens& added, const std::string& where) {
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || decoder->is_null()) return;
  for (const auto& [id, entry] : decoder->items()) {
    const std::string here = fmt::format("{}: added_tokens_decoder {}", where, id);
    const std::string content = need_string(entry, "content", here);
    const auto& tokens = added.tokens();
    const auto same =
        std::find_if(tokens.begin(), tokens.end(), [&](const AddedToken& token) { return token.content == content; });
    if (same == tokens.end() || std::to_string(same->id) != id)
      fail(ErrorClass::kBadModel,
           "{}: '{}' is not an added token of tokenizer.json with this id; make the two files agree", here, content);
    const auto differs = [&, entry = std::cref(entry)](const char* key, bool value) {
      return flag_or(entry.get(), key, value, here) != value;
    };
    if (differs("single_word", same->single_word) || differs("lstrip", same->lstrip) ||
        differs("rstrip", same->rstrip) || differs("normalized", same->normalized))
      fail(ErrorClass::kBadModel, "{}: the flags of '{}' differ from tokenizer.json; make the two files agree", here,
           content);
  }
}

}  // namespace

TokenizerConfig TokenizerConfig::load(const std::filesystem::path& folder, const AddedTokens& added) {
  TokenizerConfig result;
  const std::filesystem::path file = folder / "tokenizer_config.json";
  if (std::filesystem::exists(file)) {
    const std::string where = file.string();
    const nlohmann::json config = io::read_json_file(file, ErrorClass::kBadModel, {.max_bytes = kMaxConfigBytes});
    if (!config.is_object()) fail(ErrorClass::kBadModel, "{}: expected an object, found {}", where, config.type_name());
    result.bos_token = token_text(config, "bos_token", where);
    result.eos_token = token_text(config, "eos_token", where);
    result.pad_token = token_text(config, "pad_token", where);
    result.unk_token = token_text(config, "unk_token", where);
    result.chat_template = template_text(config, where);
    result.add_prefix_space = optional_flag(config, "add_prefix_space", where);
    result.add_bos_token = optional_flag(config, "add_bos_token", where);
    result.add_eos_token = optional_flag(config, "add_eos_token", where);
    check_added_tokens(config, added, where);
  }
  // The separate file counts more, as in the reference.
  const std::filesystem::path jinja = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja))
    result.chat_template = io::read_text_file(jinja, ErrorClass::kBadModel, kMaxConfigBytes);
  return result;
}

}  // namespace shardtune::data
