#include "bpe.h"

#include <mutex>
#include <queue>
#include <tuple>

#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {

constexpr std::size_t kCachedWords = 1u << 16;
constexpr std::size_t kCachedWordBytes = 64;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

/// A merge that was possible when it was noted; lowest rank first, then leftmost.
struct Candidate {
  std::int32_t rank;
  std::int32_t position;
  std::int32_t id;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

}  // namespace

struct BpeModel::Symbol {
  std::int32_t id;  ///< -1: merged into its left neighbour
  std::int32_t previous;  ///< index, -1 at the ends
  std::int32_t next;
};

const BpeModel::Merge* BpeModel::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

/// One symbol per byte. As in the reference a byte outside the vocabulary becomes the unknown token, or nothing.
std::vector<BpeModel::Symbol> BpeModel::first_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool after_unknown = false;
  for (const char c : word) {
    std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id < 0;
    if (unknown && (!unknown_id_ || (fuse_unknown_ && after_unknown))) continue;
    if (unknown) id = *unknown_id_;
    after_unknown = unknown;
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void BpeModel::merge_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (word.size() >= 0x7FFFFFFF)
    fail(ErrorClass::kBadData, "a word of {} bytes is longer than 2^31 - 1; split the text", word.size());
  std::vector<Symbol> symbols = first_symbols(word);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto note = [&](std::int32_t left) {
    const std::int32_t right = symbols[static_cast<std::size_t>(left)].next;
    if (right < 0) return;
    const Merge* merge =
        find_merge(symbols[static_cast<std::size_t>(left)].id, symbols[static_cast<std::size_t>(right)].id);
    if (merge != nullptr) candidates.push({merge->rank, left, merge->id});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) note(static_cast<std::int32_t>(i));

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[static_cast<std::size_t>(best.position)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;  // one of the two has changed since
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.position;
    if (left.previous >= 0) note(left.previous);
    note(best.position);
  }
  for (const Symbol& symbol : symbols)
    if (symbol.id >= 0) out.push_back(symbol.id);
}

void BpeModel::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (word.size() > kCachedWordBytes && !ignore_merges_) return merge_word(word, out);
  const std::string key(word);
  if (ignore_merges_) {
    const auto whole = whole_words_.find(key);
    if (whole != whole_words_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  {
    const std::shared_lock lock(cache_mutex_);
    const auto known = cache_.find(key);
    if (known != cache_.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      return;
    }
  }
  std::vector<std::int32_t> ids;
  merge_word(word, ids);
  out.insert(out.end(), ids.begin(), ids.end());
  const std::unique_lock lock(cache_mutex_);
  if (cache_.size() < kCachedWords && word.size() <= kCachedWordBytes) cache_.emplace(key, std::move(ids));
}

}  // namespace shardtune::data
