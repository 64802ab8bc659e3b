#include "start_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/adapters/start.h"
#include "shardtune/comm/agree.h"

namespace shardtune::train {
namespace {

bool is_derived(const model::Parameter& parameter, const adapters::LoraConfig& adapter) {
  return parameter.initial == model::Initial::kDerived && parameter.adapter == adapter.name;
}

/// Start values of the adapter's derived parameters in full, by slot of the unit. The unit is gathered.
std::vector<at::Tensor> derived_values(Run& run, std::size_t unit, const adapters::LoraConfig& adapter) {
  std::vector<at::Tensor> values;
  for (const std::size_t stage : run.shards->stages_of(unit)) {
    const model::UnitSpec& spec = run.model->units()[stage];
    for (std::size_t slot = 0; slot < spec.parameters.size(); ++slot)
      values.push_back(
          is_derived(spec.parameters[slot], adapter)
              ? adapters::start_magnitude(spec, run.shards->stage(stage), slot, adapter, run.precision.compute)
              : at::Tensor());
  }
  return values;
}

}  // namespace

void start_adapter(Run& run, const adapters::LoraConfig& adapter, const ShardOf& shard) {
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    const auto& parameters = run.shards->spec(unit).parameters;
    if (std::ranges::none_of(parameters, [&](const auto& one) { return is_derived(one, adapter); })) continue;
    // The head of a tied model borrows its base from the embedding.
    const std::size_t owner = run.shards->unit_of(0);
    const bool borrows = owner != unit && std::ranges::any_of(parameters, &model::Parameter::borrowed);
    if (borrows) run.shards->unshard(owner);
    run.shards->unshard(unit);
    comm::agree(*run.communicator, [&] {
      const std::vector<at::Tensor> values = derived_values(run, unit, adapter);
      shard(unit).for_each_range([&](std::size_t slot, std::int64_t begin, std::int64_t end, const at::Tensor& part) {
        if (values[slot].defined()) part.copy_(values[slot].flatten().narrow(0, begin, end - begin));
      });
    });
    run.shards->reshard(unit);
    if (borrows) run.shards->reshard(owner);
  }
}

void start_adapters(Run& run) {
  if (!run.lora || !run.options.adapter.adapter_name_or_path.empty()) return;
  start_adapter(run, *run.lora, [&](std::size_t unit) -> fsdp::FlatShard& { return run.shards->trained(unit); });
}

}  // namespace shardtune::train
