#include "start_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardtune/adapters/start.h"
#include "shardtune/comm/agree.h"

namespace shardtune::train {
namespace {

bool is_derived(const model::Parameter& parameter) { return parameter.initial == model::Initial::kDerived; }

/// Start values of the unit's derived parameters in full, by slot of the unit. The unit is gathered.
std::vector<at::Tensor> derived_values(Run& run, std::size_t unit) {
  std::vector<at::Tensor> values;
  for (const std::size_t stage : run.shards->stages_of(unit)) {
    const model::UnitSpec& spec = run.model->units()[stage];
    for (std::size_t slot = 0; slot < spec.parameters.size(); ++slot)
      values.push_back(
          is_derived(spec.parameters[slot])
              ? adapters::start_magnitude(spec, run.shards->stage(stage), slot, *run.lora, run.precision.compute)
              : at::Tensor());
  }
  return values;
}

}  // namespace

void start_adapters(Run& run) {
  if (!run.lora || !run.options.adapter.adapter_name_or_path.empty()) return;
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    if (std::ranges::none_of(run.shards->spec(unit).parameters, is_derived)) continue;
    // The head of a tied model borrows its base from the embedding.
    const std::size_t owner = run.shards->unit_of(0);
    const bool borrows =
        owner != unit && std::ranges::any_of(run.shards->spec(unit).parameters, &model::Parameter::borrowed);
    if (borrows) run.shards->unshard(owner);
    run.shards->unshard(unit);
    comm::agree(*run.communicator, [&] {
      const std::vector<at::Tensor> values = derived_values(run, unit);
      run.shards->trained(unit).for_each_range(
          [&](std::size_t slot, std::int64_t begin, std::int64_t end, const at::Tensor& part) {
            if (values[slot].defined()) part.copy_(values[slot].flatten().narrow(0, begin, end - begin));
          });
    });
    run.shards->reshard(unit);
    if (borrows) run.shards->reshard(owner);
  }
}

}  // namespace shardtune::train
