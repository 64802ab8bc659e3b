#include "sharding_setup.h"

#include <algorithm>
#include <optional>

#include "activation_policy.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/core/shape_only.h"

namespace shardtune::train {
namespace {

/// Whether the frozen base should lie in the node's shared memory; the same on all ranks. Collective.
bool wants_shared_base(Run& run) {
  const bool frozen = run.lora || run.kind != RunKind::kTraining;
  if (!frozen && run.options.fsdp.share_base_on_node == "true")
    throw comm::AgreedError(
        ErrorClass::kUsage,
        "--share_base_on_node true: full fine-tuning has no frozen base to share; leave the option out");
  if (plans_gpus(run)) {
    if (run.options.fsdp.share_base_on_node != "true") return false;
    throw comm::AgreedError(ErrorClass::kUsage,
                            "--share_base_on_node true: GPUs have no memory in common; leave the option out");
  }
  if (!frozen || run.communicator->size() == 1 || run.options.fsdp.share_base_on_node == "false") return false;
  if (run.options.fsdp.share_base_on_node == "true") return true;
  // auto: where a node holds at least one whole copy anyway, and there is somebody to share it with.
  int smallest = run.mesh->node().size();
  for (const int ranks : run.communicator->gather_values(smallest)) smallest = std::min(smallest, ranks);
  return smallest > 1 && smallest >= run.policy.shard_size;
}

}  // namespace

at::Device device_of(const Run& run) { return run.shapes_only ? at::kMeta : at::kCPU; }

bool plans_gpus(const Run& run) { return run.shapes_only && ops::planned_platform() == ops::Platform::kCuda; }

fsdp::ShardSettings plan_sharding(Run& run) {
  comm::Communicator& world = *run.communicator;
  const std::unique_ptr<comm::Communicator> node = world.split_by_node();
  fsdp::ShardSettings settings{.base_type = run.precision.base,
                               .trained_type = run.precision.trained,
                               .reduce_type = run.precision.reduce,
                               .gradients = run.kind == RunKind::kTraining,
                               .device = device_of(run)};
  comm::agree(world, [&] {
    run.policy = fsdp::make_policy(run.options.fsdp, world.size(), node->size());
    if (run.kind == RunKind::kTraining) run.policy.input_block = input_block(run.options.model);
    settings.policy = run.policy;
    settings.units = fsdp::wrap(run.model->units(), run.options.fsdp);
  });
  run.mesh = std::make_unique<comm::Mesh>(world, run.policy.shard_size, run.policy.inner_size);
  return settings;
}

std::unique_ptr<comm::SharedMemory> make_shared_base(Run& run, const fsdp::ShardSettings& settings) {
  if (!wants_shared_base(run)) return nullptr;
  comm::Communicator& node = run.mesh->node();
  const std::uint64_t bytes = fsdp::ShardedModel::base_bytes(run.model->units(), settings, node.size());
  std::unique_ptr<comm::SharedMemory> base;
  std::optional<comm::Failure> failure;
  try {
    base = node.allocate_shared(bytes);
  } catch (const Error& error) {
    if (error.error_class() != ErrorClass::kOutOfMemory) throw;
    failure = comm::Failure{error.error_class(), error.what()};
  }
  if (run.options.fsdp.share_base_on_node == "true") {
    comm::agree_or_throw(*run.communicator, failure);
    return base;
  }
  for (const int failed : run.communicator->gather_values(failure ? 1 : 0))
    if (failed == 1) base.reset();
  return base;
}

}  // namespace shardtune::train
