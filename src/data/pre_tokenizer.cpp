#include "pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "json_fields.h"
#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {

// The pattern built into ByteLevel (GPT-2).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Part = std::pair<Span, bool>;  // a range and whether the pattern matched it

/// The whole word as matches and what lies between them.
std::vector<Part> parts_of(const Regex& regex, std::string_view word, bool invert) {
  std::vector<Part> parts;
  std::size_t end = 0;
  for (const Span match : regex.find_all(word)) {
    if (match.begin > end) parts.push_back({{end, match.begin}, invert});
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end < word.size()) parts.push_back({{end, word.size()}, invert});
  return parts;
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const nlohmann::json& json, const std::string& where) {
  PreTokenizer result;
  if (json.is_null())
    fail(ErrorClass::kBadModel, "{}: pre_tokenizer is null; only byte-level BPE is supported, which needs ByteLevel",
         where);
  result.add(json, where);
  if (!result.byte_level_seen_)
    fail(ErrorClass::kBadModel, "{}: pre_tokenizer has no ByteLevel part; only byte-level BPE is supported", where);
  return result;
}

void PreTokenizer::add(const nlohmann::json& json, const std::string& where) {
  const std::string type = need_string(json, "type", where + ": pre_tokenizer");
  const std::string here = where + ": pre_tokenizer " + type;
  if (byte_level_seen_)
    fail(ErrorClass::kBadModel, "{}: stands after ByteLevel; ByteLevel must be the last part", here);
  if (type == "Sequence") {
    const nlohmann::json& parts = need(json, "pretokenizers", here);
    if (!parts.is_array()) fail(ErrorClass::kBadModel, "{}: pretokenizers must be a list", here);
    for (const nlohmann::json& part : parts) add(part, where);
  } else if (type == "Split") {
    add_split(json, here);
  } else if (type == "Digits") {
    const bool individual = flag_or(json, "individual_digits", false, here);
    steps_.push_back(
        {tokenizer_regex("\\p{N}", here), individual ? Behavior::kIsolated : Behavior::kContiguous, false});
  } else if (type == "ByteLevel") {
    add_byte_level(json, here);
  } else {
    fail(ErrorClass::kBadModel, "{}: this kind is not supported; supported are Split, Digits, ByteLevel and Sequence",
         here);
  }
}

void PreTokenizer::add_split(const nlohmann::json& json, const std::string& where) {
  const nlohmann::json& pattern = need(json, "pattern", where);
  const bool literal = pattern.is_object() && pattern.contains("String");
  const std::string text = need_string(pattern, literal ? "String" : "Regex", where + ": pattern");
  std::string escaped;  // a literal text as a pattern
  for (const char c : text)
    escaped += std::string_view("\\^$.[]|()?*+{}-").find(c) == std::string_view::npos ? std::string(1, c)
                                                                                      : std::string{'\\', c};
  const std::string behavior = need_string(json, "behavior", where);
  const bool invert = flag_or(json, "invert", false, where);
  static const std::vector<std::pair<std::string_view, Behavior>> known = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext}};
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == behavior; });
  if (found == known.end()) fail(ErrorClass::kBadModel, "{}: behavior '{}' is not supported", where, behavior);
  steps_.push_back({tokenizer_regex(literal ? escaped : text, where), found->second, invert});
}

void PreTokenizer::add_byte_level(const nlohmann::json& json, const std::string& where) {
  byte_level_seen_ = true;
  add_prefix_space_ = flag_or(json, "add_prefix_space", true, where);
  if (flag_or(json, "use_regex", true, where))
    byte_level_steps_.push_back({tokenizer_regex(kByteLevelPattern, where), Behavior::kIsolated, false});
}

Words PreTokenizer::split(std::string_view text) const {
  Words words{std::string(text), {}};
  if (!text.empty()) words.ranges.push_back({0, text.size()});
  for (const Step& step : steps_) apply(step, words);
  if (add_prefix_space_) {
    Words spaced;
    for (const Span range : words.ranges) {
      const std::size_t begin = spaced.text.size();
      if (words.text[range.begin] != ' ') spaced.text += ' ';
      spaced.text.append(words.text, range.begin, range.end - range.begin);
      spaced.ranges.push_back({begin, spaced.text.size()});
    }
    words = std::move(spaced);
  }
  for (const Step& step : byte_level_steps_) apply(step, words);
  return words;
}

void PreTokenizer::apply(const Step& step, Words& words) {
  std::vector<Span> ranges;
  for (const Span range : words.ranges)
    cut(step, std::string_view(words.text).substr(range.begin, range.end - range.begin), range.begin, ranges);
  words.ranges = std::move(ranges);
}

/// Appends the pieces of one word. The rules are those of the reference's SplitDelimiterBehavior; a "delimiter" is a match.
void PreTokenizer::cut(const Step& step, std::string_view word, std::size_t offset, std::vector<Span>& out) {
  const std::vector<Part> parts = parts_of(step.regex, word, step.invert);
  const std::size_t first = out.size();
  bool previous = false;  // was the part before a delimiter?
  bool open_delimiter = false;  // kMergedWithNext: the last piece is a delimiter that waits for what follows
  for (const auto& [range, is_delimiter] : parts) {
    const Span piece{range.begin + offset, range.end + offset};
    const bool has_last = out.size() > first;
    switch (step.behavior) {
      case Behavior::kIsolated: out.push_back(piece); break;
      case Behavior::kRemoved:
        if (!is_delimiter) out.push_back(piece);
        break;
      case Behavior::kContiguous:
        if (has_last && is_delimiter == previous) out.back().end = piece.end;
        else out.push_back(piece);
        break;
      case Behavior::kMergedWithPrevious:
        if (has_last && is_delimiter && !previous) out.back().end = piece.end;
        else out.push_back(piece);
        break;
      case Behavior::kMergedWithNext:
        if (open_delimiter && !is_delimiter) out.back().end = piece.end;
        else out.push_back(piece);
        open_delimiter = is_delimiter;
        break;
    }
    previous = is_delimiter;
  }
}

}  // namespace shardtune::data
