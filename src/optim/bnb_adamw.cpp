#include "bnb_adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "shardtune/quant/blockwise.h"

namespace shardtune::optim {
namespace {

constexpr std::int64_t kSmallestIn8Bit = 4096;  ///< elements of a tensor
constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

std::vector<StateRole> roles_of(bool eight_bit) {
  std::vector<StateRole> roles = {{"exp_avg"}, {"exp_avg_sq"}};
  if (eight_bit) roles.insert(roles.end(), {{"state1", Dtype::kU8}, {"absmax1"}, {"state2", Dtype::kU8}, {"absmax2"}});
  return roles;
}

template <typename T>
std::span<T> piece(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  return {tensor.mutable_data_ptr<T>() + first, static_cast<std::size_t>(count)};
}

}  // namespace

BnbAdamW::BnbAdamW(const BnbKind& kind, const OptimOptions& options, fsdp::ShardedModel& model)
    : Optimizer(kind.name, roles_of(kind.eight_bit), model), options_(options) {
  const std::vector<Parts> parts = lay_out(kind.eight_bit);
  const std::int64_t slot = state_bytes(kind.eight_bit, kind.staged_weights);
  {
    const LedgerScope scope(kind.paged ? Purpose::kHostPinned : Purpose::kOptimizer);
    for (std::size_t unit = 0; unit < model.units(); ++unit) {
      if (!parts[unit].empty()) allocate(unit, parts[unit], kind.paged);
      std::ranges::move(stretches_of(unit, parts[unit], kind.paged ? slot : kUnbounded),
                        std::back_inserter(stretches_));
    }
  }
  if (!kind.paged || stretches_.empty()) return;
  const LedgerScope scope(Purpose::kOptimizer);
  slots_ = StateSlots(slot, model.trained(stretches_.front().unit).local().options());
}

std::vector<BnbAdamW::Parts> BnbAdamW::lay_out(bool eight_bit) const {
  std::vector<Parts> parts(model_.units());
  for (std::size_t unit = 0; unit < model_.units(); ++unit) {
    std::array<std::int64_t, 2> end{};  // of fp32 and of 8-bit state
    std::int64_t blocks = 0;
    for (const Part& part : parts_of(model_, unit)) {
      const model::Parameter& parameter = *part.parameter;
      const bool in_8bit = eight_bit && parameter.elements() >= kSmallestIn8Bit && !parameter.embedding;
      parts[unit].push_back({part, in_8bit, end[in_8bit], in_8bit ? blocks : 0});
      end[in_8bit] += part.count;
      if (in_8bit) blocks += blocks_of(part.count);
    }
  }
  return parts;
}

void BnbAdamW::allocate(std::size_t unit, const Parts& parts, bool paged) {
  std::int64_t wide = 0, narrow = 0, blocks = 0;
  for (const StatePart& one : parts) {
    (one.eight_bit ? narrow : wide) += one.part.count;
    if (one.eight_bit) blocks += blocks_of(one.part.count);
  }
  const std::array<std::int64_t, kRoles> sizes = {wide, wide, narrow, blocks, narrow, blocks};
  const at::Tensor& weights = model_.trained(unit).local();
  at::TensorOptions memory = weights.options();
  if (paged && !weights.is_meta()) memory = memory.device(at::kCPU).pinned_memory(weights.is_cuda());
  for (std::size_t role = 0; role < roles().size(); ++role)
    if (sizes[role] > 0)
      state_[role][unit] = at::zeros({sizes[role]}, memory.dtype(ops::scalar_type(roles()[role].dtype)));
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

RoleTensors BnbAdamW::state_of(std::size_t unit) const {
  RoleTensors state;
  for (std::size_t role = 0; role < roles().size(); ++role) state[role] = state_[role][unit];
  return state;
}

void BnbAdamW::update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) {
  std::vector<const Stretch*> todo;
  for (const Stretch& stretch : stretches_)
    if (gradients[stretch.unit].defined() && !gradients[stretch.unit].is_meta()) todo.push_back(&stretch);
  std::array<RoleTensors, 2> in_slots;
  const auto bring = [&](std::size_t i) {
    const RoleTensors state = state_of(todo[i]->unit);
    in_slots[i % 2] = slots_.defined() ? slots_.bring(i % 2, *todo[i], state) : state;
  };
  for (std::size_t i = 0; i < todo.size(); ++i) {
    if (i == 0) bring(0);
    if (i + 1 < todo.size()) bring(i + 1);
    update_stretch(*todo[i], in_slots[i % 2], gradients[todo[i]->unit].const_data_ptr<float>(), gradient_scale,
                   learning_rate);
    if (slots_.defined()) StateSlots::send_back(*todo[i], in_slots[i % 2], state_of(todo[i]->unit));
  }
}

void BnbAdamW::update_stretch(const Stretch& stretch, const RoleTensors& state, const float* gradient,
                              float gradient_scale, double learning_rate) {
  const at::Tensor& weights = model_.trained(stretch.unit).local();
  for (const StatePart& of : stretch.parts) {
    const Part& part = of.part;
    const BnbConstants c = constants(of.eight_bit, gradient_scale, rates_of(options_, *part.parameter, learning_rate));
    const auto p = piece<float>(weights, part.at, part.count);
    const std::span<const float> g(gradient + part.at, p.size());
    const auto wide = [&](Role role) {
      return piece<float>(state[role], of.at - stretch.ranges[role].first, part.count);
    };
    const auto codes = [&](Role code, Role absmax) {
      return BnbCodes{piece<std::uint8_t>(state[code], of.at - stretch.ranges[code].first, part.count),
                      piece<float>(state[absmax], of.block - stretch.ranges[absmax].first, blocks_of(part.count))};
    };
    if (of.eight_bit) bnb_update_8bit(c, p, g, codes(kState1, kAbsmax1), codes(kState2, kAbsmax2));
    else bnb_update_32bit(c, p, g, wide(kExpAvg), wide(kExpAvgSq));
  }
}

}  // namespace shardtune::optim
