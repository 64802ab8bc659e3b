#include "fit.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

namespace shardtune::train::plan {
namespace {

constexpr std::int64_t kMostChunkTokens = 16'777'216;  // that --ffn_chunk_tokens takes

class Search {
 public:
  Search(const Space& space, std::int64_t budget_bytes, Prober& prober)
      : space_(space), budget_(budget_bytes), prober_(prober) {}

  Found run() {
    for (const std::string& strategy : space_.strategies)
      for (const std::string& order : space_.orders)
        for (const Split& split : space_.splits) {
          // With one micro-batch all orders are the same.
          if (split.micro_batches == 1 && order != space_.orders.front()) continue;
          const Setting setting{
              .strategy = strategy, .order = order, .rows = split.rows, .micro_batches = split.micro_batches};
          if (!try_chunks(setting)) break;  // larger micro-batches take more
        }
    std::ranges::stable_sort(found_.fitting, {},
                             [](const Candidate& one) { return std::pair(one.seconds, one.bytes); });
    return std::move(found_);
  }

 private:
  std::int64_t bytes(const Setting& setting) {
    const std::int64_t bytes = prober_.bytes(setting);
    if (found_.least.bytes == 0 || bytes < found_.least.bytes) found_.least = {setting, bytes, 0};
    return bytes;
  }

  /// False when not even the least demanding chunk and policy fit.
  bool try_chunks(Setting setting) {
    const std::vector<std::int64_t> chunks = space_.chunks(setting.rows);
    setting.chunk_tokens = chunks.front();
    if (bytes(setting) > budget_) return false;
    // What the smallest chunk has no room for, the others have neither; the largest is the fastest with what is left.
    const std::optional<std::int64_t> last = fastest_policy(setting, last_policy(), chunks.back());
    if (!last) return true;
    setting.policy = *last;
    add(setting);
    for (auto chunk = chunks.rbegin(); chunk + 1 != chunks.rend(); ++chunk) {
      setting.chunk_tokens = *chunk;
      setting.policy = *last;
      if (too_slow(setting)) return true;
      setting.policy = 0;
      if (bytes(setting) > budget_) continue;
      const std::optional<std::int64_t> policy = fastest_policy(setting, *last, *chunk);
      if (!policy) continue;
      setting.policy = *policy;
      add(setting);
      if (*policy == *last) return true;
    }
    return true;
  }

  std::int64_t last_policy() const { return static_cast<std::int64_t>(space_.policies.size()) - 1; }

  /// The last up to `last` that fits, or nothing when whatever fits is too slow even with `fast_chunk`. `setting` fits with the
  /// first policy.
  std::optional<std::int64_t> fastest_policy(Setting setting, std::int64_t last, std::int64_t fast_chunk) {
    const auto bytes_with = [&](std::int64_t policy) {
      setting.policy = policy;
      return bytes(setting);
    };
    const auto too_slow_with = [&](std::int64_t policy) {
      Setting fast = setting;
      fast.chunk_tokens = fast_chunk;
      fast.policy = policy;
      return too_slow(fast);
    };
    if (too_slow_with(last)) return std::nullopt;
    std::int64_t fits = 0, too_much = last;
    std::int64_t fits_bytes = bytes_with(fits), too_much_bytes = bytes_with(too_much);
    if (too_much_bytes <= budget_) return too_much;
    for (int turn = 0; too_much - fits > 1; ++turn) {
      // The curve is made of a few straight pieces: its chord is a good guess, the middle now and then keeps it from creeping.
      const double share = static_cast<double>(budget_ - fits_bytes) / static_cast<double>(too_much_bytes - fits_bytes);
      const auto chord = static_cast<std::int64_t>(share * static_cast<double>(too_much - fits));
      const std::int64_t step = turn % 3 == 2 ? (too_much - fits) / 2 : chord;
      const std::int64_t guess = std::clamp(fits + step, fits + 1, too_much - 1);
      const std::int64_t guess_bytes = bytes_with(guess);
      if (guess_bytes <= budget_) {
        fits = guess;
        fits_bytes = guess_bytes;
      } else {
        if (too_slow_with(guess)) return std::nullopt;
        too_much = guess;
        too_much_bytes = guess_bytes;
      }
    }
    return fits;
  }

  /// As slow as the last of the few that are looked for.
  bool too_slow(const Setting& setting) {
    return seconds_.size() == kFew && prober_.seconds(setting) >= *seconds_.rbegin();
  }

  void add(const Setting& setting) {
    const double seconds = prober_.seconds(setting);
    found_.fitting.push_back({setting, bytes(setting), seconds});
    seconds_.insert(seconds);
    if (seconds_.size() > kFew) seconds_.erase(std::prev(seconds_.end()));
  }

  const Space& space_;
  std::int64_t budget_;
  Prober& prober_;
  std::multiset<double> seconds_;  ///< of the fastest so far, at most kFew
  Found found_;
};

}  // namespace

std::vector<Split> splits_of(std::int64_t rows_of_step, std::int64_t most) {
  std::vector<Split> splits;
  for (std::int64_t rows = 1; rows <= std::min(rows_of_step, most); ++rows)
    if (rows_of_step % rows == 0 && rows_of_step / rows <= most) splits.push_back({rows, rows_of_step / rows});
  return splits;
}

std::vector<std::int64_t> Space::chunks(std::int64_t rows) const {
  if (row_tokens == 0) return chunk_tokens;
  const std::int64_t whole = std::min(rows * row_tokens, kMostChunkTokens);
  std::vector<std::int64_t> list;
  for (const std::int64_t tokens : chunk_tokens)
    if (tokens < whole) list.push_back(tokens);
  list.push_back(whole);
  return list;
}

Found search(const Space& space, std::int64_t budget_bytes, Prober& prober) {
  return Search(space, budget_bytes, prober).run();
}

}  // namespace shardtune::train::plan
