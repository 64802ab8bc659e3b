#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardtune/fsdp/sharded_model.h"

namespace shardtune::fsdp {

/// The stages of one unit as one list of parameters.
model::UnitSpec merged(const std::vector<model::UnitSpec>& all, const std::vector<std::size_t>& stages);

/// What ShardedModel keeps of one unit.
struct ShardedModel::Unit {
  /// An adapter's shard beside the trained one.
  struct Other {
    FlatShard shard;
    std::int64_t bytes = 0;  ///< of the gather buffer; 0: nothing is gathered
    at::Tensor cast{}, inner{};  ///< as those of the trained shard
    bool in_checkpoints = false;
  };

  Unit(model::UnitSpec unit_spec, std::vector<std::size_t> unit_stages, FlatShard frozen_shard, FlatShard trained_shard)
      : spec(std::move(unit_spec)), stages(std::move(unit_stages)), frozen(std::move(frozen_shard)),
        trained(std::move(trained_shard)) {
    weights.resize(spec.parameters.size());
    gradients.resize(spec.parameters.size());
  }

  model::UnitSpec spec;
  std::vector<std::size_t> stages;
  FlatShard frozen, trained;
  std::map<std::string, Other> others;  ///< adapters that are not trained, by name
  State state = State::kSharded;
  std::size_t pool = 0;
  std::vector<std::unique_ptr<comm::Pending>> pending;
  std::vector<at::Tensor> weights, gradients;  ///< by slot of `spec`
  at::Tensor cast;  ///< trained.local() in the type in which it is gathered; undefined when that is fp32
  std::int64_t frozen_bytes = 0, trained_bytes = 0;  ///< of the gather buffer; 0: nothing is gathered
  std::int64_t gathered_bytes() const {
    std::int64_t bytes = frozen_bytes + trained_bytes;
    for (const auto& [name, other] : others) bytes += other.bytes;
    return bytes;
  }
  at::Tensor buffer;  ///< while gathered
  bool spread = false;  ///< the next gather is over the inner group
  at::Tensor inner_frozen, inner_trained;  ///< this rank's parts for it, bytes
  std::array<at::Tensor, 2> sums;  ///< fp64, by use; made when first needed
};

}  // namespace shardtune::fsdp
