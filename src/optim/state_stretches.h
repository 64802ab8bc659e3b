#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "parts.h"

/// State of bitsandbytes' optimizers by stretches: which of it an update works on at a time, and, when it is paged, its way
/// between the host's memory and two slots of the device's.
namespace shardtune::optim {

/// In the order of BnbAdamW's roles(); with fp32 state alone the first two.
enum Role : std::size_t { kExpAvg, kExpAvgSq, kState1, kAbsmax1, kState2, kAbsmax2, kRoles };
/// One tensor for each role, undefined where there is none.
using RoleTensors = std::array<at::Tensor, kRoles>;

/// Blocks of 8-bit state that `elements` take.
std::int64_t blocks_of(std::int64_t elements);
/// Of both moments, in fp32 or as codes with their absmax.
std::int64_t state_bytes(bool eight_bit, std::int64_t weights);

/// A part of the shard and where its state begins in the unit's tensors.
struct StatePart {
  Part part;
  bool eight_bit = false;
  std::int64_t at = 0;  ///< in exp_avg and exp_avg_sq, or in state1 and state2, which have no padding
  std::int64_t block = 0;  ///< in absmax1 and absmax2
};

/// Elements of a unit's tensor of one role.
struct StateRange {
  std::int64_t first = 0, count = 0;
};

/// Parts of one unit that follow one another, and their state, which does as well.
struct Stretch {
  std::size_t unit = 0;
  std::vector<StatePart> parts;
  std::array<StateRange, kRoles> ranges;
};

/// The parts of a unit as stretches whose state takes at most `bytes` each (at least that of 256 weights in fp32, 2 KiB).
/// Cuts lie between blocks of 256 elements of a tensor, so they change no result.
std::vector<Stretch> stretches_of(std::size_t unit, std::span<const StatePart> parts, std::int64_t bytes);

/// Room on the device for the state of two stretches: one in work, the next on its way.
class StateSlots {
 public:
  StateSlots() = default;
  /// `bytes` for each slot, in memory as `device` says.
  StateSlots(std::int64_t bytes, const at::TensorOptions& device);

  bool defined() const { return memory_.defined(); }
  /// Starts copying a stretch of `state` (the unit's tensors, in the host's memory) into a slot, 0 or 1, and returns it there.
  RoleTensors bring(std::size_t slot, const Stretch& stretch, const RoleTensors& state) const;
  /// Starts copying it back, before anything that the slot's device is told to do next.
  static void send_back(const Stretch& stretch, const RoleTensors& in_slot, const RoleTensors& state);

 private:
  at::Tensor memory_;  ///< bytes, two slots
};

}  // namespace shardtune::optim
