#include "added_tokens.h"

#include <algorithm>
#include <set>

#include "json_fields.h"
#include "utf8.h"

namespace shardtune::data {
namespace {

// \w of the reference's regular expressions: Alphabetic, marks, decimal digits, connectors, joiners. The ranges are the
// letters in circles and squares, alphabetic although symbols.
constexpr const char* kWordCharacter =
    R"([\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}])";

AddedToken read_token(const nlohmann::json& entry, const std::string& where) {
  AddedToken token;
  token.content = need_string(entry, "content", where);
  token.id = need_token_id(need(entry, "id", where), where);
  token.single_word = flag_or(entry, "single_word", false, where);
  token.lstrip = flag_or(entry, "lstrip", false, where);
  token.rstrip = flag_or(entry, "rstrip", false, where);
  token.special = flag_or(entry, "special", false, where);
  token.normalized = flag_or(entry, "normalized", !token.special, where);
  if (token.content.empty()) fail(ErrorClass::kBadModel, "{}: the content is empty", where);
  return token;
}

/// `text` without the white space at its end.
std::string_view trim_end(std::string_view text) {
  while (!text.empty()) {
    const std::string_view last = utf8_last(text);
    if (!is_white_space(utf8_first(last))) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::string_view trim_start(std::string_view text) {
  while (!text.empty() && is_white_space(utf8_first(text))) text.remove_prefix(utf8_char_bytes(text[0]));
  return text;
}

}  // namespace

void AddedTokens::Trie::insert(const std::string& content, std::int32_t token) {
  std::uint32_t at = 0;
  for (const char c : content) {
    auto& children = nodes[at].children;
    const auto found =
        std::find_if(children.begin(), children.end(), [c](const auto& child) { return child.first == c; });
    if (found != children.end()) {
      at = found->second;
      continue;
    }
    const auto next = static_cast<std::uint32_t>(nodes.size());
    children.emplace_back(c, next);
    nodes.emplace_back();
    at = next;
  }
  nodes[at].token = token;
}

std::int32_t AddedTokens::Trie::longest(std::string_view text) const {
  std::int32_t best = -1;
  std::uint32_t at = 0;
  for (const char c : text) {
    const auto& children = nodes[at].children;
    const auto found =
        std::find_if(children.begin(), children.end(), [c](const auto& child) { return child.first == c; });
    if (found == children.end()) break;
    at = found->second;
    if (nodes[at].token >= 0) best = nodes[at].token;
  }
  return best;
}

AddedTokens::AddedTokens(const nlohmann::json& json, const std::string& where)
    : word_character_(Regex::compile(kWordCharacter, where, ErrorClass::kBadModel)) {
  if (json.is_null()) return;
  if (!json.is_array())
    fail(ErrorClass::kBadModel, "{}: added_tokens must be a list, found {}", where, json.type_name());
  std::set<std::int32_t> ids;
  std::set<std::string> contents;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string here = fmt::format("{}: added_tokens entry {}", where, i + 1);
    AddedToken token = read_token(json[i], here);
    if (!ids.insert(token.id).second || !contents.insert(token.content).second)
      fail(ErrorClass::kBadModel, "{}: id {} or content '{}' stands in the list twice", here, token.id, token.content);
    (token.normalized ? normalized_ : plain_).insert(token.content, static_cast<std::int32_t>(i));
    tokens_.push_back(std::move(token));
  }
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text) const {
  std::vector<Part> first;
  split_by(plain_, text, first);
  std::vector<Part> parts;
  for (const Part& part : first) {
    if (part.token != nullptr) parts.push_back(part);
    else split_by(normalized_, part.text, parts);
  }
  return parts;
}

bool AddedTokens::stands_alone(std::string_view before, std::string_view after) const {
  if (!before.empty() && word_character_.contains_match(utf8_last(before))) return false;
  return after.empty() || !word_character_.contains_match(after.substr(0, utf8_char_bytes(after[0])));
}

/// Where a match is discarded because it is part of a word, the search goes on behind it, as in the reference.
void AddedTokens::split_by(const Trie& trie, std::string_view text, std::vector<Part>& out) const {
  std::size_t done = 0;  // end of what was put out
  std::size_t at = 0;
  while (at < text.size()) {
    const std::int32_t index = trie.longest(text.substr(at));
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    const std::size_t match_begin = at;
    at += token.content.size();
    if (token.single_word && !stands_alone(text.substr(0, match_begin), text.substr(at))) continue;
    std::size_t begin = match_begin;
    std::size_t end = at;
    if (token.lstrip) begin = std::max(trim_end(text.substr(0, begin)).size(), done);
    if (token.rstrip) end = text.size() - trim_start(text.substr(end)).size();
    if (done < begin) out.push_back({text.substr(done, begin - done), nullptr});
    out.push_back({text.substr(match_begin, token.content.size()), &token});
    done = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), nullptr});
}

}  // namespace shardtune::data
