#include "shardtune/data/loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {

/// SplitMix64's output function: a bijection of 64-bit values without visible structure.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

/// Draws for one (seed, epoch). The n-th draw is a function of the key and n alone and uses 64-bit integers only, so it is
/// the same on every platform; the distributions of the standard library are not.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t epoch) : key_(mix(mix(seed + kStep) ^ (epoch + 1) * kStep)) {}

  /// Uniform in [0, bound), without bias: values of the incomplete last round are drawn again.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t leftover = (0 - bound) % bound;  // 2^64 mod bound
    std::uint64_t draw = next();
    while (draw < leftover) draw = next();
    return draw % bound;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;
  std::uint64_t next() { return mix(key_ + ++count_ * kStep); }

  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

}  // namespace

Loader::Loader(std::int64_t row_count, std::int64_t micro_batch_rows, std::int64_t ranks, std::int64_t accumulation,
               bool shuffle, std::uint64_t seed)
    : row_count_(row_count), micro_batch_rows_(micro_batch_rows), ranks_(ranks), accumulation_(accumulation),
      shuffle_(shuffle), seed_(seed) {
  SHARDTUNE_CHECK(row_count >= 0 && micro_batch_rows > 0 && ranks > 0 && accumulation > 0,
                  "{} rows, micro-batches of {}, {} ranks, accumulation {}", row_count, micro_batch_rows, ranks,
                  accumulation);
}

std::int64_t Loader::steps_per_epoch() const {
  return divide_up(divide_up(row_count_, micro_batch_rows_), ranks_ * accumulation_);
}

std::int64_t Loader::slots(std::int64_t step_in_epoch) const {
  SHARDTUNE_CHECK(step_in_epoch >= 0 && step_in_epoch < steps_per_epoch(), "step {} of {}", step_in_epoch,
                  steps_per_epoch());
  const std::int64_t left = divide_up(row_count_, micro_batch_rows_) - step_in_epoch * ranks_ * accumulation_;
  return std::min(accumulation_, divide_up(left, ranks_));
}

std::vector<std::int64_t> Loader::rows(std::int64_t epoch, std::int64_t step_in_epoch, std::int64_t slot,
                                       std::int64_t rank) const {
  SHARDTUNE_CHECK(step_in_epoch >= 0 && step_in_epoch < steps_per_epoch(), "step {} of {}", step_in_epoch,
                  steps_per_epoch());
  SHARDTUNE_CHECK(slot >= 0 && slot < accumulation_ && rank >= 0 && rank < ranks_, "slot {} of {}, rank {} of {}", slot,
                  accumulation_, rank, ranks_);
  if (cached_epoch_ != epoch) {
    cached_order_ = order(epoch);
    cached_epoch_ = epoch;
  }
  const std::int64_t micro_batch = step_in_epoch * ranks_ * accumulation_ + slot * ranks_ + rank;
  const std::int64_t begin = std::min(micro_batch * micro_batch_rows_, row_count_);
  const std::int64_t end = std::min(begin + micro_batch_rows_, row_count_);
  return {cached_order_.begin() + begin, cached_order_.begin() + end};
}

std::vector<std::int64_t> Loader::order(std::int64_t epoch) const {
  SHARDTUNE_CHECK(epoch >= 0, "epoch {}", epoch);
  std::vector<std::int64_t> order(static_cast<std::size_t>(row_count_));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle_) return order;
  Draws draws(seed_, static_cast<std::uint64_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[draws.below(left)]);
  return order;
}

}  // namespace shardtune::data
