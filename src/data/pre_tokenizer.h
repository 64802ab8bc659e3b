#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "regex.h"

namespace shardtune::data {

/// A text cut into words: `ranges` are parts of `text`, in order.
struct Words {
  std::string text;
  std::vector<Span> ranges;
};

/// Cuts text into the words that BPE then works on: Split, Digits and ByteLevel as tokenizer.json describes them. ByteLevel
/// must come last, since it rewrites the text into the byte alphabet, which this program leaves out.
class PreTokenizer {
 public:
  /// From the field "pre_tokenizer"; Error(kBadModel) names what cannot be followed.
  static PreTokenizer from_json(const nlohmann::json& json, const std::string& where);

  /// `text`: well-formed UTF-8 without added tokens.
  Words split(std::string_view text) const;

  bool add_prefix_space() const { return add_prefix_space_; }

 private:
  enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };
  struct Step {
    Regex regex;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };

  void add(const nlohmann::json& json, const std::string& where);
  void add_split(const nlohmann::json& json, const std::string& where);
  void add_byte_level(const nlohmann::json& json, const std::string& where);
  static void apply(const Step& step, Words& words);
  static void cut(const Step& step, std::string_view word, std::size_t offset, std::vector<Span>& out);

  std::vector<Step> steps_;
  std::vector<Step> byte_level_steps_;  ///< after the prefix space
  bool add_prefix_space_ = false;
  bool byte_level_seen_ = false;
};

}  // namespace shardtune::data
