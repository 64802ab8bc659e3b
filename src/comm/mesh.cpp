#include "shardtune/comm/mesh.h"

#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

Mesh::Mesh(Communicator& world, int shard_size, int inner_size) : world_(world) {
  if (shard_size == 0) shard_size = world.size();
  if (inner_size == 0) inner_size = shard_size;
  if (shard_size < 1 || world.size() % shard_size != 0)
    fail(ErrorClass::kUsage, "--shard_group_size {} does not divide the {} of the job", shard_size,
         counted(world.size(), "rank"));
  if (inner_size < 1 || shard_size % inner_size != 0)
    fail(ErrorClass::kUsage, "--fsdp_reshard_after_forward {} does not divide the {} of a shard group", inner_size,
         counted(shard_size, "rank"));
  if (shard_size != world.size()) own_shard_ = world.split([=](int rank) { return rank / shard_size; });
  if (inner_size != shard_size) own_inner_ = shard().split([=](int rank) { return rank / inner_size; });
  replicate_ = world.split([=](int rank) { return rank % shard_size; });
  node_ = world.split_by_node();
}

Counts Mesh::counts() const {
  Counts sum = world_.counts();
  for (const auto* group : {&own_shard_, &own_inner_, &replicate_, &node_})
    if (*group) sum += (*group)->counts();
  return sum;
}

void Mesh::reset_counts() {
  world_.reset_counts();
  for (auto* group : {&own_shard_, &own_inner_, &replicate_, &node_})
    if (*group) (*group)->reset_counts();
}

}  // namespace shardtune::comm
