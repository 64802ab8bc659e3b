#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shardtune::data {

class AddedTokens;

/// What tokenizer_config.json and chat_template.jinja say; all empty when the files are not there.
struct TokenizerConfig {
  std::string bos_token;
  std::string eos_token;
  std::string pad_token;
  std::string unk_token;
  std::string chat_template;
  std::optional<bool> add_prefix_space;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;

  /// Reads the folder. The reference applies `added_tokens_decoder` over tokenizer.json; where the two disagree the file is
  /// refused: Error(kBadModel).
  static TokenizerConfig load(const std::filesystem::path& folder, const AddedTokens& added);
};

}  // namespace shardtune::data
