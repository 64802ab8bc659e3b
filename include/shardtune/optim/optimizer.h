#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardtune/core/dtype.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/optim/options.h"

namespace shardtune::optim {

/// One kind of state that an optimizer keeps of the trained weights.
struct StateRole {
  std::string name;  ///< as PyTorch and bitsandbytes call it: "exp_avg", "absmax1"
  Dtype dtype = Dtype::kF32;
};

/// Updates this rank's trained shards from their gradients. Everything is element-wise, or within blocks of 256 elements that
/// no cut divides, so weights and state are the same for any sharding. No communication.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step from the reduced gradients: fp32, one tensor a unit, laid out like its trained shard, undefined for units without
  /// trained parameters. Each is multiplied by `gradient_scale` first.
  void step(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate);

  /// Steps since the start of training: bias corrections depend on it.
  std::int64_t steps_taken() const { return steps_; }
  void set_steps_taken(std::int64_t steps) { steps_ = steps; }

  /// The value of --optim, an alias under its first name.
  const std::string& name() const { return name_; }
  /// What a checkpoint has to hold beside the weights. The same on every rank.
  const std::vector<StateRole>& roles() const { return roles_; }
  /// This rank's state of a role (an index of roles()) in a unit: one dimension, owned by the optimizer; undefined where there
  /// is none.
  at::Tensor state(std::size_t role, std::size_t unit) const { return state_[role][unit]; }

 protected:
  Optimizer(std::string_view name, std::vector<StateRole> roles, fsdp::ShardedModel& model);
  virtual void update(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) = 0;

  fsdp::ShardedModel& model_;
  std::vector<std::vector<at::Tensor>> state_;  ///< by role and unit

 private:
  std::string name_;
  std::vector<StateRole> roles_;
  std::int64_t steps_ = 0;
};

/// Whether the host's memory is another one than that of the device that trains. It is not on a CPU: paged state is then booked
/// with the device's.
enum class HostMemory { kSameAsDevice, kApart };

/// The optimizer that options.optim names, with fresh state. `model` must outlive it. No communication.
std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options, fsdp::ShardedModel& model,
                                          HostMemory host = HostMemory::kSameAsDevice);

}  // namespace shardtune::optim
