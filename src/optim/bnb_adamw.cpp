#include "bnb_adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "shardtune/quant/blockwise.h"

namespace shardtune::optim {
namespace {

constexpr std::int64_t kSmallestIn8Bit = 4096;  ///< elements of a tensor
/// Weights whose state is on the device at a time when it is paged: two such stretches, one in work and one on its way.
constexpr std::int64_t kStagedWeights = 1 << 20;

enum Role : std::size_t { kExpAvg, kExpAvgSq, kState1, kAbsmax1, kState2, kAbsmax2 };

std::vector<StateRole> roles_of(bool eight_bit) {
  std::vector<StateRole> roles = {{"exp_avg"}, {"exp_avg_sq"}};
  if (eight_bit) roles.insert(roles.end(), {{"state1", Dtype::kU8}, {"absmax1"}, {"state2", Dtype::kU8}, {"absmax2"}});
  return roles;
}

std::int64_t blocks_of(std::int64_t elements) { return (elements + quant::kStateBlock - 1) / quant::kStateBlock; }

template <typename T>
std::span<T> piece(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  return {tensor.mutable_data_ptr<T>() + first, static_cast<std::size_t>(count)};
}

}  // namespace

BnbAdamW::BnbAdamW(const BnbKind& kind, const OptimOptions& options, fsdp::ShardedModel& model)
    : Optimizer(kind.name, roles_of(kind.eight_bit), model), options_(options), parts_(model.units()) {
  lay_out(kind.eight_bit);
  {
    const LedgerScope scope(kind.paged ? Purpose::kHostPinned : Purpose::kOptimizer);
    for (std::size_t unit = 0; unit < model.units(); ++unit)
      if (!parts_[unit].empty()) allocate(unit);
  }
  if (!kind.paged) return;
  const LedgerScope scope(Purpose::kOptimizer);
  const std::int64_t bytes =
      kind.eight_bit ? 2 * kStagedWeights + 2 * 4 * blocks_of(kStagedWeights) : 2 * 4 * kStagedWeights;
  for (std::size_t unit = 0; unit < model.units() && !staging_.defined(); ++unit)
    if (!parts_[unit].empty())
      staging_ = at::empty({2 * bytes}, model.trained(unit).local().options().dtype(at::kByte));
}

void BnbAdamW::lay_out(bool eight_bit) {
  for (std::size_t unit = 0; unit < model_.units(); ++unit) {
    std::array<std::int64_t, 2> end{};  // of fp32 and of 8-bit state
    std::int64_t blocks = 0;
    for (const Part& part : parts_of(model_, unit)) {
      const model::Parameter& parameter = *part.parameter;
      const bool in_8bit = eight_bit && parameter.elements() >= kSmallestIn8Bit && !parameter.embedding;
      parts_[unit].push_back({part, in_8bit, end[in_8bit], in_8bit ? blocks : 0});
      end[in_8bit] += part.count;
      if (in_8bit) blocks += blocks_of(part.count);
    }
  }
}

void BnbAdamW::allocate(std::size_t unit) {
  std::int64_t wide = 0, narrow = 0, blocks = 0;
  for (const StatePart& one : parts_[unit]) {
    (one.eight_bit ? narrow : wide) += one.part.count;
    if (one.eight_bit) blocks += blocks_of(one.part.count);
  }
  const std::array<std::int64_t, 6> sizes = {wide, wide, narrow, blocks, narrow, blocks};
  const at::TensorOptions device = model_.trained(unit).local().options();
  for (std::size_t role = 0; role < roles().size(); ++role)
    if (sizes[role] > 0)
      state_[role][unit] = at::zeros({sizes[role]}, device.dtype(ops::scalar_type(roles()[role].dtype)));
}

BnbConstants BnbAdamW::constants(bool eight_bit, float gradient_scale, const Rates& rates) const {
  const auto power = static_cast<double>(steps_taken());
  const double correction1 = 1 - std::pow(options_.adam_beta1, power),
               correction2 = std::sqrt(1 - std::pow(options_.adam_beta2, power));
  const double epsilon = options_.adam_epsilon;
  return {.beta1 = static_cast<float>(options_.adam_beta1),
          .one_minus_beta1 = static_cast<float>(1 - options_.adam_beta1),
          .beta2 = static_cast<float>(options_.adam_beta2),
          .one_minus_beta2 = static_cast<float>(1 - options_.adam_beta2),
          .gradient_scale = gradient_scale,
          .decay = static_cast<float>(1 - rates.learning_rate * rates.weight_decay),
          .correction2 = eight_bit ? static_cast<float>(correction2) : 1.0f,
          .epsilon = static_cast<float>(eight_bit ? epsilon : epsilon * correction2),
          .minus_step = static_cast<float>(eight_bit ? -rates.learning_rate / correction1
                                                     : -rates.learning_rate * correction2 / correction1)};
}

void BnbAdamW::update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) {
  for (std::size_t unit = 0; unit < gradients.size(); ++unit)
    if (gradients[unit].defined() && !gradients[unit].is_meta())
      update_unit(unit, gradients[unit].const_data_ptr<float>(), gradient_scale, learning_rate);
}

void BnbAdamW::update_unit(std::size_t unit, const float* gradient, float gradient_scale, double learning_rate) {
  const at::Tensor& weights = model_.trained(unit).local();
  for (const auto& [part, eight_bit, at, block] : parts_[unit]) {
    const BnbConstants c = constants(eight_bit, gradient_scale, rates_of(options_, *part.parameter, learning_rate));
    const auto p = piece<float>(weights, part.at, part.count);
    const std::span<const float> g(gradient + part.at, p.size());
    const auto codes = [&](Role state, Role absmax) {
      return BnbCodes{piece<std::uint8_t>(state_[state][unit], at, part.count),
                      piece<float>(state_[absmax][unit], block, blocks_of(part.count))};
    };
    if (eight_bit) bnb_update_8bit(c, p, g, codes(kState1, kAbsmax1), codes(kState2, kAbsmax2));
    else
      bnb_update_32bit(c, p, g, piece<float>(state_[kExpAvg][unit], at, part.count),
                       piece<float>(state_[kExpAvgSq][unit], at, part.count));
  }
}

}  // namespace shardtune::optim
