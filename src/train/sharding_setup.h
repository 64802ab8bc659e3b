#pragma once
#include <memory>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/train/run.h"

/// How a run's weights are cut and stored: what build_run() decides before there are any.
namespace shardtune::train {

/// Where the run's tensors lie.
at::Device device_of(const Run& run);

/// True for a run on shapes that stands for one on GPUs.
bool plans_gpus(const Run& run);

/// True for a run on shapes whose frozen linears take the bytes of NF4 with double quantisation.
bool plans_nf4_base(const Run& run);

/// Works the mesh out and cuts the model into units. Collective.
fsdp::ShardSettings plan_sharding(Run& run);

/// The model's units as they are stored. With an NF4 base every frozen parameter counts in bytes; embedding, norms and head
/// stay bf16.
std::vector<model::UnitSpec> stored_units(const Run& run, fsdp::ShardSettings& settings);

/// Memory for the frozen base that the ranks of a node share, or nothing. `auto` goes without where a node has no room.
/// Collective.
std::unique_ptr<comm::SharedMemory> make_shared_base(Run& run, const fsdp::ShardSettings& settings);

}  // namespace shardtune::train
