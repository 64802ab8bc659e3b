#pragma once
#include <array>
#include <cstdint>

namespace shardtune::ops {

/// The words of `groups` counters from {base[0], base[1], base[2], base[3]} on, the last word of the counter growing by one
/// each (modulo 2^32): words[4 * i + w] is word w of counter i, as philox4x32() gives it. Writes 4 * groups words, groups a
/// multiple of kPhiloxBlock.
void philox_words(const std::array<std::uint32_t, 4>& base, std::uint64_t seed, std::int64_t groups,
                  std::uint32_t* words);
/// The same one by one, without vector instructions: what the fast versions are tested against.
void philox_words_plain(const std::array<std::uint32_t, 4>& base, std::uint64_t seed, std::int64_t groups,
                        std::uint32_t* words);
constexpr std::int64_t kPhiloxBlock = 8;

}  // namespace shardtune::ops
