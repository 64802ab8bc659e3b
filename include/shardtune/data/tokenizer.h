#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardtune::data {

/// Byte-level BPE as tokenizer.json describes it (Hugging Face tokenizers). Immutable after loading, thread-safe.
class Tokenizer {
 public:
  /// Reads tokenizer.json and, when present, tokenizer_config.json (bos/eos/pad/unk token, chat template, also from
  /// chat_template.jinja) and the ids in config.json / generation_config.json are NOT used. Error(kBadModel) for anything
  /// that cannot be followed exactly: unknown normalizer, pre-tokenizer, post-processor or model kind is refused by name.
  static Tokenizer load(const std::filesystem::path& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Token ids of `text` (UTF-8). Added and special tokens in the text are recognised, as the reference does.
  /// `add_special_tokens` applies the post-processor (for example a leading BOS).
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const;
  /// The bytes the ids stand for; special tokens are written out unless skipped. Ids at or above vocabulary_size() (spare
  /// rows of the embedding) stand for nothing, as in the reference.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = false) const;

  /// Largest id + 1.
  std::int32_t vocabulary_size() const;
  std::optional<std::int32_t> id_of(std::string_view token) const;
  const std::string& bos_token() const;  ///< "" when there is none
  const std::string& eos_token() const;
  const std::string& pad_token() const;
  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;
  std::optional<std::int32_t> pad_id() const;
  const std::string& chat_template() const;  ///< Jinja text, "" when there is none

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardtune::data
