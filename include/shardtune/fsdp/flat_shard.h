#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "shardtune/fsdp/shard_layout.h"
#include "shardtune/model/parameters.h"

namespace shardtune::fsdp {

/// Granules in elements: dense frozen tensors may be cut anywhere, trained ones at the 8-bit optimizer's block. In a buffer of
/// bytes: aligned for every type.
constexpr std::int64_t kFrozenGranule = 1, kTrainedGranule = 256, kByteGranule = 16;

/// Which parameters of a unit lie in a flat shard: the frozen ones of the model, those that are trained, or those of one named
/// adapter, trained or not.
struct Part {
  bool trained = false;
  std::string adapter{};
};

/// The layout of a part of a unit's parameters over `ranks`. A unit with a quantised parameter has its
/// frozen ones in a buffer of bytes, the others among them as elements of `type`.
ShardLayout layout_of(const model::UnitSpec& unit, const Part& part, std::int64_t ranks, at::ScalarType type);
/// Bytes of an element.
inline std::int64_t width_of(at::ScalarType type) { return static_cast<std::int64_t>(at::elementSize(type)); }
/// Of what is laid out: bytes (kByte), or `type`.
at::ScalarType buffer_type(const model::UnitSpec& unit, const Part& part, at::ScalarType type);

/// This rank's share of a part of a unit's parameters. Frozen: in the base's type, or bytes. Trained, and adapters: fp32 masters.
class FlatShard {
 public:
  /// Takes the part's parameters that are not borrowed; `options` have the type of dense ones. `whole`,
  /// when defined, is memory for all ranks' shards [full_elements of buffer_type()] that the ranks have in common: local() is
  /// then a part of it.
  FlatShard(const model::UnitSpec& unit, const Part& part, const at::TensorOptions& options, std::int64_t rank,
            std::int64_t ranks, const at::Tensor& whole = {});
  /// Finds the parameters again after others were entered into the unit.
  void find_slots_again(const model::UnitSpec& unit);
  /// The same parameters under another name: an adapter that is trained from now on, or no longer.
  void set_part(Part part) { part_ = std::move(part); }

  bool empty() const { return layout_.tensors() == 0; }
  const ShardLayout& layout() const { return layout_; }
  at::Tensor& local() { return local_; }
  const at::Tensor& local() const { return local_; }
  /// All ranks' shards when they lie in shared memory; undefined otherwise.
  const at::Tensor& whole() const { return whole_; }
  /// Slot in the unit of the i-th tensor of this shard.
  std::size_t slot(std::size_t tensor) const { return slots_[tensor]; }

  /// This rank's elements of the parameters; `visit` gets slot, element range, and the part of local(). Of a quantised
  /// parameter: its packed bytes.
  void for_each_range(
      const std::function<void(std::size_t slot, std::int64_t begin, std::int64_t end, at::Tensor part)>& visit);
  /// The same for another tensor laid out like the shard (gradient sums, optimizer state).
  void for_each_range_of(at::Tensor flat,
                         const std::function<void(std::size_t, std::int64_t, std::int64_t, at::Tensor)>& visit);

  /// Views of the parameters in a full flat buffer, written to `out` by slot.
  void views(const at::Tensor& full, const model::UnitSpec& unit, std::vector<at::Tensor>& out) const;

 private:
  /// A parameter's part of a flat buffer in the type that it is seen in.
  at::Tensor typed(std::size_t tensor, const at::Tensor& part) const;

  Part part_;
  std::vector<std::size_t> slots_;
  std::vector<bool> packed_;  ///< as slots_
  at::ScalarType type_;
  ShardLayout layout_;
  std::vector<TensorRange> ranges_;
  at::Tensor whole_, local_;
};

}  // namespace shardtune::fsdp
