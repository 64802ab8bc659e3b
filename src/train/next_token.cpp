#include <algorithm>
#include <cmath>
#include <numeric>

#include "shardtune/core/philox.h"
#include "shardtune/train/generate.h"

namespace shardtune::train {
namespace {

/// In [0, 1), with 53 bits.
double uniform(std::uint64_t seed, std::uint64_t prompt, std::uint32_t position) {
  constexpr std::uint32_t kTokens = 0x746F6B73;  // apart from the counters of dropout
  const auto words = philox4x32(
      {position, static_cast<std::uint32_t>(prompt), static_cast<std::uint32_t>(prompt >> 32), kTokens}, seed);
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

/// Ids by falling logit, of equal ones the lowest first; with top_k those of the k-th largest logit and above.
std::vector<std::int32_t> ranked(std::span<const float> logits, std::int64_t top_k) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto at = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  if (top_k > 0 && top_k < static_cast<std::int64_t>(ids.size())) {
    std::vector<float> sorted(logits.begin(), logits.end());
    std::ranges::nth_element(sorted, sorted.begin() + (top_k - 1), std::greater());
    std::erase_if(ids, [&](std::int32_t id) { return at(id) < sorted[static_cast<std::size_t>(top_k - 1)]; });
  }
  std::ranges::stable_sort(ids, std::greater(), at);
  return ids;
}

}  // namespace

std::int32_t next_token(std::span<const float> logits, const GenerateOptions& options, std::uint64_t seed,
                        std::uint64_t prompt, std::uint32_t position) {
  if (!options.do_sample) return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  const std::vector<std::int32_t> ids = ranked(logits, options.top_k);
  const auto scaled = [&](std::int32_t id) {
    return static_cast<double>(logits[static_cast<std::size_t>(id)]) / options.temperature;
  };
  std::vector<double> weights;
  for (const std::int32_t id : ids) weights.push_back(std::exp(scaled(id) - scaled(ids.front())));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  // A token stays while those before it have less than top_p together.
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && kept < options.top_p * all) kept += weights[count++];
  const double drawn = uniform(seed, prompt, position) * kept;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (drawn < (sum += weights[i])) return ids[i];
  return ids[count - 1];
}

}  // namespace shardtune::train
