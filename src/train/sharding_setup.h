#pragma once
#include <memory>

#include "shardtune/comm/communicator.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/train/run.h"

/// How a run's weights are cut and stored: what build_run() decides before there are any.
namespace shardtune::train {

/// Where the run's tensors lie.
at::Device device_of(const Run& run);

/// True for a run on shapes that stands for one on GPUs.
bool plans_gpus(const Run& run);

/// Works the mesh out and cuts the model into units. Collective.
fsdp::ShardSettings plan_sharding(Run& run);

/// Memory for the frozen base that the ranks of a node share, or nothing. `auto` goes without where a node has no room.
/// Collective.
std::unique_ptr<comm::SharedMemory> make_shared_base(Run& run, const fsdp::ShardSettings& settings);

}  // namespace shardtune::train
