#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "regex.h"

namespace shardtune::data {

/// A token that is found in the text before BPE looks at it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;  ///< takes the white space before it
  bool rstrip = false;  ///< takes the white space after it
  bool normalized = false;  ///< searched only after the others
  bool special = false;
};

/// Finds added tokens as the reference does: at each place the longest one, from left to right; first all that are not
/// `normalized`, then the rest in what is left.
class AddedTokens {
 public:
  /// From the field "added_tokens".
  AddedTokens(const nlohmann::json& json, const std::string& where);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  /// A stretch of plain text, or an added token.
  struct Part {
    std::string_view text;
    const AddedToken* token = nullptr;  ///< null: plain text
  };
  std::vector<Part> split(std::string_view text) const;

 private:
  /// Byte trie of token contents.
  struct Trie {
    struct Node {
      std::vector<std::pair<char, std::uint32_t>> children;
      std::int32_t token = -1;  ///< index into tokens_
    };
    std::vector<Node> nodes{1};

    void insert(const std::string& content, std::int32_t token);
    /// Token of the longest content at the front of `text`, -1 when none.
    std::int32_t longest(std::string_view text) const;
  };

  void split_by(const Trie& trie, std::string_view text, std::vector<Part>& out) const;
  bool stands_alone(std::string_view before, std::string_view after) const;

  std::vector<AddedToken> tokens_;
  Trie plain_;
  Trie normalized_;
  Regex word_character_;
};

}  // namespace shardtune::data
