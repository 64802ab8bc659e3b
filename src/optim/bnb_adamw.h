#pragma once
#include <string_view>

#include "bnb_update.h"
#include "parts.h"
#include "shardtune/optim/optimizer.h"

namespace shardtune::optim {

struct BnbKind {
  std::string_view name;
  bool eight_bit = false;
  bool paged = false;  ///< state in the host's memory, which is another one than the device's
};

/// AdamW as bitsandbytes computes it, with fp32 or 8-bit state. With 8-bit state, tensors of fewer than 4096 elements (of the
/// whole tensor, whatever this rank holds of it) and the embedding keep fp32 state all the same, as with bitsandbytes and
/// Transformers. Source: bitsandbytes 0.50.2, AdamW8bit, PagedAdamW8bit and PagedAdamW32bit.
class BnbAdamW : public Optimizer {
 public:
  BnbAdamW(const BnbKind& kind, const OptimOptions& options, fsdp::ShardedModel& model);

 private:
  struct StatePart {
    Part part;
    bool eight_bit = false;
    std::int64_t at = 0;  ///< in exp_avg and exp_avg_sq, or in state1 and state2, which have no padding
    std::int64_t block = 0;  ///< in absmax1 and absmax2
  };

  void lay_out(bool eight_bit);
  void allocate(std::size_t unit);
  void update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) override;
  void update_unit(std::size_t unit, const float* gradient, float gradient_scale, double learning_rate);
  BnbConstants constants(bool eight_bit, float gradient_scale, const Rates& rates) const;

  OptimOptions options_;
  std::vector<std::vector<StatePart>> parts_;  ///< by unit
  at::Tensor staging_;  ///< paged: blocks of state on their way, bytes
};

}  // namespace shardtune::optim
