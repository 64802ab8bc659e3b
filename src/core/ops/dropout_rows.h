#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "philox_words.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::ops {

/// Which words keep their element, and what a kept one is multiplied by.
struct DropoutRule {
  std::uint32_t threshold = 0;
  float scale = 1;

  explicit DropoutRule(double probability)
      : threshold(static_cast<std::uint32_t>(std::min(std::ceil(probability * 4294967296.0), 4294967295.0))),
        // The inverse of the share of the 2^32 words that is kept, and not of 1 - p, which fp32 rounds coarsely near p = 1.
        scale(static_cast<float>(4294967296.0 / (4294967296.0 - threshold))) {}

  [[gnu::always_inline]] float apply(std::uint32_t word, float x) const { return word >= threshold ? x * scale : 0.0f; }
};

/// Draws the words of rows of one width. One for each thread.
class DropoutWords {
 public:
  DropoutWords(const DropoutKey& key, std::int64_t rows, std::int64_t width)
      : key_(key), width_(width),
        // Four elements share a counter, and a width that four does not divide begins inside such a group.
        groups_(((width + 3 + 3) / 4 + kPhiloxBlock - 1) / kPhiloxBlock * kPhiloxBlock) {
    SHARDTUNE_CHECK(static_cast<std::int64_t>(key.samples.size()) == rows, "dropout key for {} tokens, input has {}",
                    key.samples.size(), rows);
    words_.resize(static_cast<std::size_t>(4 * groups_));
  }

  /// One word for each column of row n; overwritten by the next call.
  const std::uint32_t* row(std::int64_t n) {
    const auto token = static_cast<std::size_t>(n);
    const auto first = static_cast<std::uint64_t>(key_.document_positions[token]) * static_cast<std::uint64_t>(width_);
    philox_words(
        {static_cast<std::uint32_t>(key_.samples[token]), key_.step, key_.site, static_cast<std::uint32_t>(first / 4)},
        key_.seed, groups_, words_.data());
    return words_.data() + first % 4;
  }

 private:
  const DropoutKey& key_;
  std::int64_t width_, groups_;
  std::vector<std::uint32_t> words_;
};

}  // namespace shardtune::ops
