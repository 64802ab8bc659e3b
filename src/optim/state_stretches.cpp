#include "state_stretches.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/core/error.h"
#include "shardtune/quant/blockwise.h"

namespace shardtune::optim {
namespace {

constexpr std::int64_t kBlock = quant::kStateBlock;
constexpr std::int64_t kWide = 2 * sizeof(float);  ///< bytes of fp32 state a weight
constexpr std::int64_t kAbsmaxes = 2 * sizeof(float);  ///< bytes of both absmax of a block of 8-bit state
constexpr std::int64_t kAlignment = 16;  ///< of a slot, bytes
/// fp32 first: codes may then end anywhere.
constexpr std::array<Role, kRoles> kOrderInSlot = {kExpAvg, kExpAvgSq, kAbsmax1, kAbsmax2, kState1, kState2};

/// Weights of whole blocks whose state fits.
std::int64_t fitting(bool eight_bit, std::int64_t bytes) {
  return eight_bit ? bytes / (2 * kBlock + kAbsmaxes) * kBlock : bytes / (kWide * kBlock) * kBlock;
}

void widen(StateRange& range, std::int64_t first, std::int64_t count) {
  if (range.count == 0) range.first = first;
  range.count = first + count - range.first;
}

void append(Stretch& stretch, const StatePart& piece) {
  stretch.parts.push_back(piece);
  const std::int64_t count = piece.part.count;
  for (const Role role : piece.eight_bit ? std::array{kState1, kState2} : std::array{kExpAvg, kExpAvgSq})
    widen(stretch.ranges[role], piece.at, count);
  if (!piece.eight_bit) return;
  for (const Role role : {kAbsmax1, kAbsmax2}) widen(stretch.ranges[role], piece.block, blocks_of(count));
}

}  // namespace

std::int64_t blocks_of(std::int64_t elements) { return (elements + kBlock - 1) / kBlock; }

std::int64_t state_bytes(bool eight_bit, std::int64_t weights) {
  return eight_bit ? 2 * weights + kAbsmaxes * blocks_of(weights) : kWide * weights;
}

std::vector<Stretch> stretches_of(std::size_t unit, std::span<const StatePart> parts, std::int64_t bytes) {
  SHARDTUNE_CHECK(bytes >= kWide * kBlock, "{} bytes do not hold the state of a block", bytes);
  std::vector<Stretch> stretches;
  std::int64_t room = 0;
  for (StatePart rest : parts)
    while (rest.part.count > 0) {
      StatePart piece = rest;
      if (state_bytes(rest.eight_bit, rest.part.count) > room)
        piece.part.count = std::min(rest.part.count, fitting(rest.eight_bit, room));
      if (piece.part.count == 0) {
        stretches.push_back({.unit = unit, .parts = {}, .ranges = {}});
        room = bytes;
        continue;
      }
      append(stretches.back(), piece);
      room -= state_bytes(piece.eight_bit, piece.part.count);
      rest.part.at += piece.part.count;
      rest.at += piece.part.count;
      rest.block += rest.eight_bit ? blocks_of(piece.part.count) : 0;
      rest.part.count -= piece.part.count;
    }
  return stretches;
}

StateSlots::StateSlots(std::int64_t bytes, const at::TensorOptions& device)
    : memory_(at::empty({2, (bytes + kAlignment - 1) / kAlignment * kAlignment}, device.dtype(at::kByte))) {}

RoleTensors StateSlots::bring(std::size_t slot, const Stretch& stretch, const RoleTensors& state) const {
  RoleTensors in_slot;
  const at::Tensor memory = memory_.select(0, static_cast<std::int64_t>(slot));
  std::int64_t at_byte = 0;
  for (const Role role : kOrderInSlot) {
    const auto& [first, count] = stretch.ranges[role];
    if (count == 0) continue;
    const std::int64_t bytes = count * static_cast<std::int64_t>(state[role].element_size());
    in_slot[role] = memory.narrow(0, at_byte, bytes).view(state[role].scalar_type());
    in_slot[role].copy_(state[role].narrow(0, first, count), /*non_blocking=*/true);
    at_byte += bytes;
  }
  return in_slot;
}

void StateSlots::send_back(const Stretch& stretch, const RoleTensors& in_slot, const RoleTensors& state) {
  for (std::size_t role = 0; role < kRoles; ++role)
    if (const auto& [first, count] = stretch.ranges[role]; count > 0)
      state[role].narrow(0, first, count).copy_(in_slot[role], /*non_blocking=*/true);
}

}  // namespace shardtune::optim
