#pragma once
#include <string_view>

#include "bnb_update.h"
#include "shardtune/optim/optimizer.h"
#include "state_stretches.h"

namespace shardtune::optim {

struct BnbKind {
  std::string_view name;
  bool eight_bit = false;
  bool paged = false;  ///< state in the host's memory, which is another one than the device's
  /// Weights whose state is in one of the device's two slots at a time when it is paged.
  std::int64_t staged_weights = 1 << 20;
};

/// AdamW as bitsandbytes computes it, with fp32 or 8-bit state. With 8-bit state, tensors of fewer than 4096 elements (of the
/// whole tensor, whatever this rank holds of it) and the embedding keep fp32 state all the same, as with bitsandbytes and
/// Transformers. Source: bitsandbytes 0.50.2, AdamW8bit, PagedAdamW8bit and PagedAdamW32bit.
class BnbAdamW : public Optimizer {
 public:
  BnbAdamW(const BnbKind& kind, const OptimOptions& options, fsdp::ShardedModel& model);

 private:
  using Parts = std::vector<StatePart>;
  std::vector<Parts> lay_out(bool eight_bit) const;
  void allocate(std::size_t unit, const Parts& parts, bool paged);
  void update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) override;
  void update_stretch(const Stretch& stretch, const RoleTensors& state, const float* gradient, float gradient_scale,
                      double learning_rate);
  RoleTensors state_of(std::size_t unit) const;
  BnbConstants constants(bool eight_bit, float gradient_scale, const Rates& rates) const;

  OptimOptions options_;
  std::vector<Stretch> stretches_;  ///< of all units, in their order; not paged: one a unit
  StateSlots slots_;  ///< paged
};

}  // namespace shardtune::optim
