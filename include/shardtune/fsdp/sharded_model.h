#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shardtune/comm/mesh.h"
#include "shardtune/core/ledger.h"
#include "shardtune/fsdp/flat_shard.h"
#include "shardtune/fsdp/policy.h"
#include "shardtune/model/parameters.h"

namespace shardtune::fsdp {

struct ShardSettings {
  Policy policy{};
  std::vector<std::vector<std::size_t>> units{};  ///< stages of each unit (see wrap()); empty: one each
  at::ScalarType base_type = at::kFloat;  ///< storage of frozen parameters that are not quantised
  at::ScalarType trained_type = at::kFloat;  ///< in which trained parameters are gathered and used; masters are fp32
  at::ScalarType reduce_type = at::kFloat;  ///< in which gradients travel; sums are fp64
  bool gradients =
      true;  ///< false: for forward alone; no room for gradients is made, and backward's verbs are not for it
  at::Device device = at::kCPU;  ///< where shards and buffers lie
  comm::StreamRef stream{};  ///< that computes, and so waits for collectives; null: the host does
};

/// Every rank keeps a part of each unit, gathers the unit when it is needed and lets it go afterwards. A unit holds one or more
/// stages of the model (embedding, layers, head). The verbs of a unit's life are prefetch -> unshard -> reshard, and in
/// backward zero_gradients -> reduce. All of them are collective and must be called in the same order on all ranks. Gather
/// buffers are allocated once. The engine moves flat bytes; it knows neither LoRA nor attention.
class ShardedModel {
 public:
  /// `stages` is copied. `shared_base`: memory of base_bytes() that this node's ranks have in common; frozen parameters then
  /// lie there once, are cut over the node's ranks for loading, and are never gathered.
  ShardedModel(std::vector<model::UnitSpec> stages, const ShardSettings& settings, comm::Mesh& mesh,
               std::unique_ptr<comm::SharedMemory> shared_base = nullptr);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  /// Bytes of shared memory for all frozen parameters, cut over `ranks`.
  static std::uint64_t base_bytes(const std::vector<model::UnitSpec>& stages, const ShardSettings& settings, int ranks);
  /// To be called when every rank has filled its frozen shards. Collective.
  void base_loaded();

  std::size_t units() const { return units_.size(); }
  std::size_t unit_of(std::size_t stage) const { return unit_of_[stage]; }
  /// The last unit of a walk over the model; units of pieces may follow.
  std::size_t head_unit() const { return unit_of_[head_]; }
  const std::vector<std::size_t>& stages_of(std::size_t unit) const;
  /// The unit's parameters: those of its stages in order.
  const model::UnitSpec& spec(std::size_t unit) const;
  FlatShard& frozen(std::size_t unit);
  FlatShard& trained(std::size_t unit);
  bool shares_base() const { return shared_base_ != nullptr; }

  /// The four below change what the adapters are while the base stays as it lies; no unit may be gathered. They move no data, but
  /// must be called in the same order on all ranks. `stages` are the model's, where the parameters of adapter `name` have been
  /// entered; its shards are zero and take no part yet. `in_checkpoints`: its values come from no file.
  void add_adapter(const std::string& name, const std::vector<model::UnitSpec>& stages, bool in_checkpoints = false);
  /// Drops the shards of an adapter that is not trained. Its parameters are `absent` in `stages`.
  void remove_adapter(const std::string& name, const std::vector<model::UnitSpec>& stages);
  /// Adapters (beside the trained one) whose tensors are gathered with the units; and whether the trained one's are.
  void set_active(std::set<std::string> names, bool trained_takes_part);
  /// The adapter "before", "" for none, is no longer trained and "after" is: its parameters are trainable in `stages`. Gradient sums
  /// are forgotten. The optimizer belongs to the adapter that it was made for.
  void set_trained(const std::string& before, const std::string& after, const std::vector<model::UnitSpec>& stages);
  bool trained_takes_part() const { return trained_takes_part_; }
  /// The shard of an adapter that is not trained.
  FlatShard& adapter(const std::string& name, std::size_t unit);
  /// Adapters that are not trained and that a checkpoint has to hold all the same.
  std::vector<std::string> adapters_in_checkpoints() const;

  /// Starts gathering a unit; does nothing when it is gathered or under way.
  void prefetch(std::size_t unit);
  /// The same, but does nothing either when no buffer is free.
  void prefetch_if_room(std::size_t unit);
  /// Gathers the unit now unless prefetched. The stages' tensors are then in stage().
  void unshard(std::size_t unit);
  /// The tensors of a stage of a gathered unit. A borrowed slot holds the owner's tensor: the owner's unit must be gathered
  /// too.
  model::UnitTensors& stage(std::size_t stage);
  /// Lets the unit's full tensors go; its buffer may be reused at once.
  void reshard(std::size_t unit);
  /// The same, but this rank's part of the inner group is kept, and the next gather of the unit is over that group only.
  void reshard_to_inner(std::size_t unit);
  bool is_gathered(std::size_t unit) const;

  /// Gives the unit's trainable slots zeroed full fp32 gradient buffers. A borrowed slot gets the owner's: the head of a tied
  /// model is followed by reduce(head) and reduce(owner, 1).
  void zero_gradients(std::size_t unit);
  /// Sends every rank of the shard group its part of the gradients and adds the parts in rank order to the fp64 sums of use
  /// `use` (0, or 1 for a tied table used by the head of another unit). Releases the gradient views.
  void reduce(std::size_t unit, int use = 0);
  /// Adds the sums of the replicate groups up, once per step. Nothing with one group.
  void reduce_over_replicas();

  /// Sums of the gradients of this step: the uses added and rounded once to fp32, laid out like trained(unit).local().
  at::Tensor reduced_gradient(std::size_t unit) const;
  /// Forgets the sums: the start of a step.
  void clear_gradient_sums();

  /// The unit's trained tensors in full, by slot (undefined where nothing is trained), put together from every rank's `local`,
  /// which lies like trained(unit).local(): the weights, gradient sums or moments. Views of one new buffer in local's type.
  std::vector<at::Tensor> gather_trained(std::size_t unit, const at::Tensor& local);
  /// The same for the tensors of an adapter that is not trained.
  std::vector<at::Tensor> gather_adapter(const std::string& name, std::size_t unit);

 private:
  enum class State { kSharded, kGathering, kGathered };
  struct Unit;

  /// Gather buffers of one size, each used by one unit at a time.
  struct Pool {
    std::vector<at::Tensor> buffers;  ///< bytes
    std::vector<std::optional<std::size_t>> occupants;
  };

  at::TensorOptions on_device(at::ScalarType type) const;
  at::Tensor shared_part(std::int64_t first_byte, std::int64_t bytes, at::ScalarType type);
  void make_units(const std::vector<model::UnitSpec>& stages);
  void choose_pools();
  void make_buffers();
  std::size_t layer_buffers() const;
  bool layers_lend_buffers(std::int64_t layer_bytes, std::int64_t other_bytes) const;
  at::Tensor take_buffer(std::size_t unit);
  void start_gather(std::size_t unit);
  void gather_part(Unit& unit, FlatShard& shard, at::Tensor local, const at::Tensor& inner, const at::Tensor& into);
  std::vector<at::Tensor> gather_full(const FlatShard& shard, const model::UnitSpec& spec, const at::Tensor& local);
  void check_nothing_is_gathered() const;
  void take_specs(const std::vector<model::UnitSpec>& stages);
  void find_slots_again();
  void make_buffers_again();
  /// Gives the unit's stages their part of its weights or gradients; what is trained in place of another goes there too.
  void hand_out(const Unit& unit, const std::vector<at::Tensor>& tensors,
                std::vector<at::Tensor> model::UnitTensors::*kind);
  void borrow_weight();
  /// What the head of a tied model uses of the owner's tensors (its unit's, by slot): the table, or the copy of it that an adapter
  /// which takes part trains for both.
  const at::Tensor& lent(const std::vector<at::Tensor>& of_owner) const;

  comm::Mesh& mesh_;
  ShardSettings settings_;
  std::unique_ptr<comm::SharedMemory> shared_base_;
  std::optional<LedgerEntry> shared_base_entry_;  ///< a window is no tensor's memory
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::size_t> unit_of_;  ///< by stage
  std::vector<model::UnitTensors> stages_;
  std::set<std::string> active_;  ///< adapters that are gathered beside the trained one
  bool trained_takes_part_ = true;
  struct Place {
    std::size_t stage = 0, slot = 0;
  };
  std::optional<Place> borrower_;  ///< what is borrowed from stage 0's first slot
  /// Rows of tokens that table and head have in common: the head's slot, and the embedding's that owns them.
  struct SharedRows {
    std::size_t slot = 0, owner_slot = 0;
  };
  std::optional<SharedRows> shared_rows_;  ///< of the stage of borrower_
  std::size_t head_ = 0;  ///< the stage
  std::array<Pool, 3> pools_;  ///< units with layers; tables and whole heads, and their pieces; norm beside a table
  std::array<at::Tensor, 3> gradient_buffers_;  ///< fp32 full gradients of one unit per pool
  at::Tensor send_buffer_, receive_buffer_;  ///< gradients in reduce_type on their way
};

}  // namespace shardtune::fsdp
