#pragma once
#include <memory>

#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

/// The ranks of a job as a grid. A shard group of consecutive ranks holds one copy of what is trained; a replicate group has
/// one rank of each shard group, those that hold the same part. An inner group is a run of ranks inside a shard group, over
/// which a unit may be spread between forward and backward.
class Mesh {
 public:
  /// `shard_size` divides the world, `inner_size` divides it in turn; 0: as large as can be. Error(kUsage) otherwise.
  /// Collective.
  explicit Mesh(Communicator& world, int shard_size = 0, int inner_size = 0);

  Communicator& world() { return world_; }
  Communicator& shard() { return own_shard_ ? *own_shard_ : world_; }
  Communicator& replicate() { return *replicate_; }
  Communicator& inner() { return own_inner_ ? *own_inner_ : shard(); }
  /// The ranks of the world that share this rank's memory.
  Communicator& node() { return *node_; }

  /// Over all groups of this rank.
  Counts counts() const;
  void reset_counts();

 private:
  Communicator& world_;
  std::unique_ptr<Communicator> own_shard_, own_inner_;  ///< none: the same as the next larger one
  std::unique_ptr<Communicator> replicate_, node_;
};

}  // namespace shardtune::comm
