#pragma once
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/fsdp/flat_shard.h"
#include "shardtune/model/parameters.h"

namespace shardtune::fsdp {

/// Full sharding: every rank keeps 1/W of each unit, gathers a unit when it is needed and lets it go afterwards. The verbs of a
/// unit's life are prefetch -> unshard -> reshard, and in backward zero_gradients -> reduce. All of them are collective and
/// must be called in the same order on all ranks. Gather buffers are allocated once: two for the layers, one for embedding and
/// head, which are never needed together unless tied.
///
/// The engine moves flat bytes; it knows neither LoRA nor attention.
class ShardedModel {
 public:
  /// `base_type`: storage of frozen parameters. `model_units` is copied.
  ShardedModel(std::vector<model::UnitSpec> model_units, at::ScalarType base_type, comm::Communicator& communicator);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  std::size_t units() const { return units_.size(); }
  const model::UnitSpec& spec(std::size_t unit) const;
  FlatShard& frozen(std::size_t unit);
  FlatShard& trained(std::size_t unit);

  /// Starts gathering a unit; does nothing when it is gathered or under way.
  void prefetch(std::size_t unit);
  /// Full tensors of the unit, gathered now unless prefetched. A unit with a borrowed slot sees the owner's tensor: the owner
  /// (unit 0) must be unsharded as well.
  model::UnitTensors& unshard(std::size_t unit);
  /// Lets the unit's full tensors go; its buffer may be reused at once.
  void reshard(std::size_t unit);
  bool is_gathered(std::size_t unit) const;

  /// Gives the unit's trainable slots zeroed full fp32 gradient buffers. A borrowed slot gets the owner's: the head of a tied
  /// model is followed by reduce(head) and reduce(0, 1).
  void zero_gradients(std::size_t unit);
  /// Full gradient views of the unit while it is in backward.
  std::vector<at::Tensor>& gradients(std::size_t unit);
  /// Sends every rank its part of the gradients and adds the parts in rank order to the fp64 sums of use `use` (0, or 1 for
  /// a tied table used by the head). Releases the gradient views.
  void reduce(std::size_t unit, int use = 0);

  /// Sums of the gradients of this step: the uses added and rounded once to fp32, laid out like trained(unit).local().
  at::Tensor reduced_gradient(std::size_t unit) const;
  /// Forgets the sums: the start of a step.
  void clear_gradient_sums();

  /// The unit's trained tensors in full, by slot (undefined where nothing is trained), put together from every rank's `local`,
  /// which lies like trained(unit).local(): the weights, gradient sums or moments. Views of one new buffer in local's type.
  std::vector<at::Tensor> gather_trained(std::size_t unit, const at::Tensor& local);

 private:
  enum class State { kSharded, kGathering, kGathered };
  struct Unit;

  /// Gather buffers of one size, each used by one unit at a time.
  struct Pool {
    std::vector<at::Tensor> buffers;  ///< bytes
    std::vector<std::optional<std::size_t>> occupants;
  };

  void make_pools();
  at::Tensor take_buffer(std::size_t unit);
  void start_gather(std::size_t unit);
  void borrow(std::size_t unit);

  std::vector<std::unique_ptr<Unit>> units_;
  comm::Communicator& communicator_;
  std::array<Pool, 3> pools_;  ///< layers; embedding and untied head; norm of a tied head
  std::array<at::Tensor, 3> gradient_buffers_;  ///< fp32 full gradients of one unit per pool
  at::Tensor receive_buffer_;  ///< what the other ranks sent of theirs
};

}  // namespace shardtune::fsdp
