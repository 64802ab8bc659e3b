#include "first_values.h"

#include <ATen/ATen.h>
#include <xxhash.h>

#include <cmath>
#include <numbers>

#include "shardtune/core/philox.h"

namespace shardtune::train {
namespace {

/// Random numbers of a tensor: each element is a function of seed, name and its number, so every rank can make its own part.
class Draws {
 public:
  Draws(const std::string& name, std::uint64_t seed) : hash_(XXH3_64bits(name.data(), name.size())), seed_(seed) {}

  /// Word `which` (0 to 3) of block `block`, as a number between 0 and 1.
  double unit(std::uint64_t block, std::size_t which) const {
    const auto words = philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                   static_cast<std::uint32_t>(hash_), static_cast<std::uint32_t>(hash_ >> 32)},
                                  seed_);
    return (static_cast<double>(words[which]) + 0.5) / 4294967296.0;
  }

 private:
  std::uint64_t hash_, seed_;
};

/// Elements [begin, begin + n) of a uniform tensor in +-bound.
void fill_uniform(at::Tensor part, std::int64_t begin, const Draws& draws, double bound) {
  auto* out = part.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin + i);
    out[i] = static_cast<float>((2 * draws.unit(element / 4, element % 4) - 1) * bound);
  }
}

/// The same of a tensor that is normally distributed, by Box and Muller: two words an element.
void fill_normal(at::Tensor part, std::int64_t begin, const Draws& draws, double deviation) {
  auto* out = part.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin + i);
    const std::size_t pair = 2 * (element % 2);
    const double radius = deviation * std::sqrt(-2 * std::log(draws.unit(element / 2, pair)));
    out[i] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * draws.unit(element / 2, pair + 1)));
  }
}

}  // namespace

void fill_first_values(const at::Tensor& part, std::int64_t begin, const model::Parameter& parameter,
                       std::uint64_t seed) {
  const Draws draws(parameter.name, seed);
  if (parameter.initial == model::Initial::kLoraA)
    fill_uniform(part, begin, draws, 1.0 / std::sqrt(static_cast<double>(parameter.shape[1])));
  if (parameter.initial == model::Initial::kUnitNormal) fill_normal(part, begin, draws, 1);
  if (parameter.initial == model::Initial::kNormal)
    fill_normal(part, begin, draws, 1.0 / static_cast<double>(parameter.shape[0]));
}

}  // namespace shardtune::train
