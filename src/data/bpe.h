#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace shardtune::data {

/// The merge table and vocabulary of byte-level BPE. Thread-safe.
class BpeModel {
 public:
  /// From the field "model". `added`: contents of the added tokens; they are no merged pieces although they may stand in
  /// the vocabulary. Error(kBadModel) names what cannot be followed.
  BpeModel(const nlohmann::json& json, const std::unordered_set<std::string>& added, const std::string& where);
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  /// Appends the ids of one word (raw bytes). Takes O(n log n) time for n bytes.
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;

  /// Pieces in the spelling of the file (byte alphabet) and their ids.
  const std::unordered_map<std::string, std::int32_t>& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t id = 0;  ///< of the merged piece
  };
  struct Symbol;

  void read_vocabulary(const nlohmann::json& json, const std::string& where);
  void read_merges(const nlohmann::json& json, const std::string& where);
  void read_settings(const nlohmann::json& json, const std::string& where);
  void require_merges(const std::unordered_set<std::string>& added, const std::string& where) const;
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  std::vector<Symbol> first_symbols(std::string_view word) const;
  void merge_word(std::string_view word, std::vector<std::int32_t>& out) const;

  std::unordered_map<std::string, std::int32_t> vocabulary_;
  std::unordered_map<std::string, std::int32_t> whole_words_;  ///< raw bytes; filled when merges may be skipped
  std::array<std::int32_t, 256> byte_ids_{};  ///< -1 where the vocabulary has no such byte
  std::unordered_map<std::uint64_t, Merge> merges_;  ///< key: left id, right id
  std::optional<std::int32_t> unknown_id_;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;

  mutable std::shared_mutex cache_mutex_;
  mutable std::unordered_map<std::string, std::vector<std::int32_t>> cache_;
};

}  // namespace shardtune::data
