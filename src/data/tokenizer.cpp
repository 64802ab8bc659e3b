#include "shardtune/data/tokenizer.h"

#include <algorithm>

#include "added_tokens.h"
#include "bpe.h"
#include "byte_alphabet.h"
#include "json_fields.h"
#include "post_processor.h"
#include "pre_tokenizer.h"
#include "shardtune/io/json.h"
#include "tokenizer_config.h"
#include "utf8.h"

namespace shardtune::data {
namespace {

std::unordered_set<std::string> contents_of(const AddedTokens& added) {
  std::unordered_set<std::string> contents;
  for (const AddedToken& token : added.tokens()) contents.insert(token.content);
  return contents;
}

void check_normalizer_and_decoder(const nlohmann::json& json, const std::string& where) {
  const auto normalizer = json.find("normalizer");
  if (normalizer != json.end() && !normalizer->is_null())
    fail(ErrorClass::kBadModel, "{}: normalizer {} is not supported; only null is", where,
         need_string(*normalizer, "type", where + ": normalizer"));
  const auto decoder = json.find("decoder");
  if (decoder != json.end() && !decoder->is_null() && need_string(*decoder, "type", where + ": decoder") != "ByteLevel")
    fail(ErrorClass::kBadModel, "{}: decoder {} is not supported; only ByteLevel is", where,
         need_string(*decoder, "type", where));
}

}  // namespace

struct Tokenizer::Impl {
  AddedTokens added;
  BpeModel model;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  TokenizerConfig config;

  struct Text {
    bool known = false;
    bool special = false;
    std::string bytes;
  };
  std::vector<Text> texts;  ///< by id
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> eos_id;
  std::optional<std::int32_t> pad_id;

  Impl(const nlohmann::json& json, const std::string& where)
      : added(json.value("added_tokens", nlohmann::json()), where),
        model(need(json, "model", where), contents_of(added), where),
        pre_tokenizer(PreTokenizer::from_json(json.value("pre_tokenizer", nlohmann::json()), where)),
        post_processor(PostProcessor::from_json(json.value("post_processor", nlohmann::json()), where)) {
    fill_texts(where);
  }

  std::optional<std::int32_t> find(std::string_view token) const {
    for (const AddedToken& known : added.tokens())
      if (known.content == token) return known.id;
    const auto found = model.vocabulary().find(std::string(token));
    if (found == model.vocabulary().end()) return std::nullopt;
    return found->second;
  }

  void fill_texts(const std::string& where);
  void check_config(const std::string& where);
  std::optional<std::int32_t> named_token(const std::string& token, const char* name, const std::string& where) const;
};

/// The bytes of every id. The reference does not take the id of an added token from the list: it is the vocabulary's, else
/// the next free one. A file where the two differ is refused, as is one where two tokens share an id.
void Tokenizer::Impl::fill_texts(const std::string& where) {
  std::int32_t last = 0;
  for (const auto& [piece, id] : model.vocabulary()) last = std::max(last, id);
  for (const AddedToken& token : added.tokens()) last = std::max(last, token.id);
  constexpr std::int32_t kMaxTokens = 1 << 24;
  if (last >= kMaxTokens) fail(ErrorClass::kBadModel, "{}: token id {} is not below {}", where, last, kMaxTokens);
  texts.resize(static_cast<std::size_t>(last) + 1);
  for (const auto& [piece, id] : model.vocabulary()) {
    Text& text = texts[static_cast<std::size_t>(id)];
    if (text.known)
      fail(ErrorClass::kBadModel, "{}: '{}' and another piece of the vocabulary share id {}", where, piece, id);
    text = {true, false, bytes_of_piece(piece).value_or(piece)};
  }
  auto next_free = static_cast<std::int32_t>(model.vocabulary().size());
  for (const AddedToken& token : added.tokens()) {
    const auto in_vocabulary = model.vocabulary().find(token.content);
    const std::int32_t expected = in_vocabulary == model.vocabulary().end() ? next_free : in_vocabulary->second;
    if (token.id != expected)
      fail(ErrorClass::kBadModel,
           "{}: added token '{}' has id {}, but the vocabulary and the tokens before it give it {}; save the "
           "tokenizer again",
           where, token.content, token.id, expected);
    next_free = std::max(next_free, token.id + 1);
    Text& text = texts[static_cast<std::size_t>(token.id)];
    if (text.known && in_vocabulary == model.vocabulary().end())
      fail(ErrorClass::kBadModel, "{}: added token '{}' and a piece of the vocabulary share id {}", where,
           token.content, token.id);
    text = {true, token.special, token.content};
  }
}

std::optional<std::int32_t> Tokenizer::Impl::named_token(const std::string& token, const char* name,
                                                         const std::string& where) const {
  if (token.empty()) return std::nullopt;
  const auto id = find(token);
  if (!id)
    fail(ErrorClass::kBadModel,
         "{}: {} '{}' of tokenizer_config.json is no token of tokenizer.json; correct the name or add the token", where,
         name, token);
  return id;
}

/// Settings of tokenizer_config.json that would change ids in the reference must agree with tokenizer.json.
void Tokenizer::Impl::check_config(const std::string& where) {
  bos_id = named_token(config.bos_token, "bos_token", where);
  eos_id = named_token(config.eos_token, "eos_token", where);
  pad_id = named_token(config.pad_token, "pad_token", where);
  if (config.add_prefix_space && *config.add_prefix_space != pre_tokenizer.add_prefix_space())
    fail(ErrorClass::kBadModel,
         "{}: add_prefix_space is {} but tokenizer_config.json says {}; make the two files agree", where,
         pre_tokenizer.add_prefix_space(), *config.add_prefix_space);
  const auto has = [](const std::vector<std::int32_t>& ids, std::optional<std::int32_t> id) {
    return id && std::find(ids.begin(), ids.end(), *id) != ids.end();
  };
  if (config.add_bos_token && *config.add_bos_token != has(post_processor.before, bos_id))
    fail(ErrorClass::kBadModel,
         "{}: add_bos_token of tokenizer_config.json is {} but the post_processor {}; make the two files agree", where,
         *config.add_bos_token, has(post_processor.before, bos_id) ? "adds it" : "does not add it");
  if (config.add_eos_token && *config.add_eos_token != has(post_processor.after, eos_id))
    fail(ErrorClass::kBadModel,
         "{}: add_eos_token of tokenizer_config.json is {} but the post_processor {}; make the two files agree", where,
         *config.add_eos_token, has(post_processor.after, eos_id) ? "adds it" : "does not add it");
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  const std::string where = file.string();
  if (!std::filesystem::exists(file))
    fail(ErrorClass::kBadModel, "{}: no such file; the model folder must hold the tokenizer as tokenizer.json", where);
  const nlohmann::json json = io::read_json_file(file, ErrorClass::kBadModel);
  if (!json.is_object()) fail(ErrorClass::kBadModel, "{}: expected an object, found {}", where, json.type_name());
  check_normalizer_and_decoder(json, where);
  auto impl = std::make_unique<Impl>(json, where);
  impl->config = TokenizerConfig::load(folder, impl->added);
  impl->check_config(where);
  return Tokenizer(std::move(impl));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const std::size_t valid = utf8_error_offset(text);
  if (valid != text.size()) fail(ErrorClass::kBadData, "text to tokenise is not UTF-8 at byte {}", valid);
  std::vector<std::int32_t> ids;
  if (add_special_tokens) ids = impl_->post_processor.before;
  for (const AddedTokens::Part& part : impl_->added.split(text)) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    const Words words = impl_->pre_tokenizer.split(part.text);
    for (const Span word : words.ranges)
      impl_->model.encode_word(std::string_view(words.text).substr(word.begin, word.end - word.begin), ids);
  }
  if (add_special_tokens) ids.insert(ids.end(), impl_->post_processor.after.begin(), impl_->post_processor.after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (id < 0) fail(ErrorClass::kBadData, "token id {} is negative", id);
    if (id >= vocabulary_size()) continue;  // spare rows of the embedding stand for nothing
    const Impl::Text& text = impl_->texts[static_cast<std::size_t>(id)];
    if (!(text.special && skip_special_tokens)) bytes += text.bytes;
  }
  return bytes;
}

std::int32_t Tokenizer::vocabulary_size() const { return static_cast<std::int32_t>(impl_->texts.size()); }
std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const { return impl_->find(token); }
const std::string& Tokenizer::bos_token() const { return impl_->config.bos_token; }
const std::string& Tokenizer::eos_token() const { return impl_->config.eos_token; }
const std::string& Tokenizer::pad_token() const { return impl_->config.pad_token; }
std::optional<std::int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<std::int32_t> Tokenizer::pad_id() const { return impl_->pad_id; }
const std::string& Tokenizer::chat_template() const { return impl_->config.chat_template; }

}  // namespace shardtune::data
