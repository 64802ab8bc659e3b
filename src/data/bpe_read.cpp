// Reading the merge table and vocabulary of tokenizer.json.
#include <algorithm>

#include "bpe.h"
#include "byte_alphabet.h"
#include "json_fields.h"

namespace shardtune::data {
namespace {

/// The two pieces of a merge, written "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_parts(const nlohmann::json& entry, std::size_t number,
                                                const std::string& where) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  if (entry.is_string()) {
    const std::string text = entry.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  fail(ErrorClass::kBadModel, "{}: merges entry {} is neither \"a b\" nor [\"a\", \"b\"]: {}", where, number,
       entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80));
}

}  // namespace

BpeModel::BpeModel(const nlohmann::json& json, const std::unordered_set<std::string>& added, const std::string& where) {
  const std::string here = where + ": model";
  if (!json.is_object()) fail(ErrorClass::kBadModel, "{}: expected an object, found {}", here, json.type_name());
  const std::string type = json.contains("type") ? need_string(json, "type", here) : "BPE";
  if (type != "BPE") fail(ErrorClass::kBadModel, "{}: kind {} is not supported; only BPE is", here, type);
  read_vocabulary(need(json, "vocab", here), here);
  read_settings(json, here);
  read_merges(need(json, "merges", here), here);
  require_merges(added, here);
}

void BpeModel::read_vocabulary(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object() || json.empty())
    fail(ErrorClass::kBadModel, "{}: vocab must be an object with at least one piece", where);
  vocabulary_.reserve(json.size());
  for (const auto& [piece, id] : json.items())
    vocabulary_.emplace(piece, need_token_id(id, fmt::format("{}: vocab '{}'", where, piece)));
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary_.find(piece_of_byte(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = found == vocabulary_.end() ? -1 : found->second;
  }
}

void BpeModel::read_settings(const nlohmann::json& json, const std::string& where) {
  const auto refuse_set = [&](const char* key) {
    const auto found = json.find(key);
    if (found != json.end() && !found->is_null() &&
        !(found->is_string() && found->get_ref<const std::string&>().empty()))
      fail(ErrorClass::kBadModel, "{}: {} is set ({}), which this program does not follow", where, key, found->dump());
  };
  refuse_set("continuing_subword_prefix");
  refuse_set("end_of_word_suffix");
  const auto dropout = json.find("dropout");
  if (dropout != json.end() && !dropout->is_null() && !(dropout->is_number() && dropout->get<double>() == 0))
    fail(ErrorClass::kBadModel, "{}: dropout is {}; token ids would be random", where, dropout->dump());
  const bool all_bytes = std::none_of(byte_ids_.begin(), byte_ids_.end(), [](std::int32_t id) { return id < 0; });
  if (flag_or(json, "byte_fallback", false, where) && !all_bytes)
    fail(ErrorClass::kBadModel,
         "{}: byte_fallback is set and the vocabulary lacks bytes, which this program does not follow", where);
  const auto unknown = json.find("unk_token");
  if (unknown != json.end() && !unknown->is_null()) {
    const auto found = vocabulary_.find(need_string(json, "unk_token", where));
    if (found != vocabulary_.end()) unknown_id_ = found->second;
    else if (!all_bytes)
      fail(ErrorClass::kBadModel, "{}: unk_token {} is not in the vocabulary", where, unknown->dump());
  }
  fuse_unknown_ = flag_or(json, "fuse_unk", false, where);
  ignore_merges_ = flag_or(json, "ignore_merges", false, where);
  if (!ignore_merges_) return;
  for (const auto& [piece, id] : vocabulary_)
    if (const auto bytes = bytes_of_piece(piece)) whole_words_.emplace(*bytes, id);
}

void BpeModel::read_merges(const nlohmann::json& json, const std::string& where) {
  if (!json.is_array()) fail(ErrorClass::kBadModel, "{}: merges must be a list, found {}", where, json.type_name());
  merges_.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto [left, right] = merge_parts(json[i], i + 1, where);
    const auto id_of = [&, left = left, right = right](const std::string& piece) {
      const auto found = vocabulary_.find(piece);
      if (found == vocabulary_.end())
        fail(ErrorClass::kBadModel, "{}: merges entry {} ('{}' + '{}'): '{}' is not in the vocabulary", where, i + 1,
             left, right, piece);
      return found->second;
    };
    const std::uint64_t key = static_cast<std::uint64_t>(id_of(left)) << 32 | static_cast<std::uint64_t>(id_of(right));
    merges_[key] = {static_cast<std::int32_t>(i),
                    id_of(left + right)};  // the last of equal pairs counts, as in the reference
  }
}

void BpeModel::require_merges(const std::unordered_set<std::string>& added, const std::string& where) const {
  if (!merges_.empty()) return;
  for (const auto& [piece, id] : vocabulary_) {
    const auto bytes = bytes_of_piece(piece);
    if (bytes && bytes->size() > 1 && added.count(piece) == 0)
      fail(ErrorClass::kBadModel,
           "{}: merges is empty but the vocabulary holds merged pieces such as '{}'; the file is not whole", where,
           piece);
  }
}

}  // namespace shardtune::data
