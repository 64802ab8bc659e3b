#include "start_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "first_values.h"
#include "shardtune/adapters/adapter_set.h"
#include "shardtune/adapters/start.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/ops.h"

namespace shardtune::train {
namespace {

bool is_derived(const model::Parameter& parameter, const adapters::LoraConfig& adapter) {
  return parameter.initial == model::Initial::kDerived && parameter.adapter == adapter.name;
}

/// Start values of the adapter's magnitudes in full, by slot of the unit. The unit is gathered.
std::vector<at::Tensor> magnitudes(Run& run, std::size_t unit, const adapters::LoraConfig& adapter) {
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

/// A module of a gathered unit whose adapter starts from its weight.
struct Started {
  std::size_t stage = 0;
  std::string module;
  std::int64_t in = 0, out = 0;
};

std::vector<Started> started_modules(const Run& run, std::size_t unit) {
  const std::string suffix = ".lora_A.weight";
  std::vector<Started> modules;
  for (const std::size_t stage : run.shards->stages_of(unit)) {
    const model::UnitSpec& spec = run.model->units()[stage];
    for (std::size_t slot = 0; slot < spec.parameters.size(); ++slot) {
      const model::Parameter& a = spec.parameters[slot];
      if (a.adapter != run.lora->name || !a.name.ends_with(suffix)) continue;
      // B is entered right behind A.
      modules.push_back({.stage = stage,
                         .module = a.name.substr(0, a.name.size() - suffix.size()),
                         .in = a.shape[1],
                         .out = spec.parameters[slot + 1].shape[0]});
    }
  }
  return modules;
}

adapters::Factors factors_of(Run& run, const Started& one) {
  const model::UnitSpec& spec = run.model->units()[one.stage];
  const at::Tensor weight =
      adapters::base_weight(spec, run.shards->stage(one.stage), one.module, *run.lora, run.precision.compute);
  return adapters::start_factors(weight, *run.lora, one.module, [&](const at::Tensor& numbers) {
    fill_first_values(
        numbers, 0,
        {.name = one.module + ".start", .shape = numbers.sizes().vec(), .initial = model::Initial::kUnitNormal},
        run.options.data.seed);
  });
}

/// The factors of a gathered unit's modules by parameter name. Each module is one rank's work, and everybody gets what it found:
/// another processor may choose other signs. Collective.
std::map<std::string, at::Tensor> factors_of_unit(Run& run, std::size_t unit) {
  comm::Communicator& communicator = *run.communicator;
  const std::vector<Started> modules = started_modules(run, unit);
  std::map<std::string, at::Tensor> values;
  const auto owner = [&](std::size_t i) { return static_cast<int>(i % static_cast<std::size_t>(communicator.size())); };
  const auto a_of = [](const Started& one) { return one.module + ".lora_A.weight"; };
  const auto b_of = [](const Started& one) { return one.module + ".lora_B.weight"; };
  comm::agree(communicator, [&] {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const Started& one = modules[i];
      const std::int64_t rank = run.lora->rank_of(one.module);
      adapters::Factors factors;
      if (owner(i) == communicator.rank()) factors = factors_of(run, one);
      else factors = {.a = at::empty({rank, one.in}, at::kFloat), .b = at::empty({one.out, rank}, at::kFloat)};
      values[a_of(one)] = factors.a.contiguous();
      values[b_of(one)] = factors.b.contiguous();
    }
  });
  for (std::size_t i = 0; i < modules.size(); ++i)
    for (const std::string& name : {a_of(modules[i]), b_of(modules[i])})
      communicator.broadcast(ops::bytes_of(values.at(name)), owner(i));
  return values;
}

void fill_by_name(Run& run, std::size_t unit, fsdp::FlatShard& shard, const std::map<std::string, at::Tensor>& values) {
  shard.for_each_range([&](std::size_t slot, std::int64_t begin, std::int64_t end, const at::Tensor& part) {
    const auto found = values.find(run.shards->spec(unit).parameters[slot].name);
    if (found != values.end()) part.copy_(found->second.flatten().narrow(0, begin, end - begin));
  });
}

void fill_factors(Run& run, std::size_t unit) {
  const std::map<std::string, at::Tensor> values = factors_of_unit(run, unit);
  fill_by_name(run, unit, run.shards->trained(unit), values);
  fill_by_name(run, unit, run.shards->adapter(adapters::start_name(run.lora->name), unit), values);
}

void fill_magnitudes(Run& run, std::size_t unit, const adapters::LoraConfig& adapter, fsdp::FlatShard& shard) {
  comm::agree(*run.communicator, [&] {
    const std::vector<at::Tensor> values = magnitudes(run, unit, adapter);
    shard.for_each_range([&](std::size_t slot, std::int64_t begin, std::int64_t end, const at::Tensor& part) {
      if (values[slot].defined()) part.copy_(values[slot].flatten().narrow(0, begin, end - begin));
    });
  });
}

}  // namespace

void enter_frozen_start(Run& run) {
  if (!run.lora || !adapters::starts_from_base(*run.lora)) return;
  adapters::AdapterSet(run.adapter_hosts, *run.lora, *run.model).add_start(*run.lora);
  const std::string name = adapters::start_name(run.lora->name);
  run.shards->add_adapter(name, run.model->units(), /*in_checkpoints=*/true);
  run.shards->set_active({name}, /*trained_takes_part=*/true);
}

void start_adapter(Run& run, const adapters::LoraConfig& adapter, const ShardOf& shard) {
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    const auto& parameters = run.shards->spec(unit).parameters;
    if (std::ranges::none_of(parameters, [&](const auto& one) { return is_derived(one, adapter); })) continue;
    // The head of a tied model borrows its base from the embedding.
    const std::size_t owner = run.shards->unit_of(0);
    const bool borrows = owner != unit && std::ranges::any_of(parameters, &model::Parameter::borrowed);
    if (borrows) run.shards->unshard(owner);
    run.shards->unshard(unit);
    if (adapters::starts_from_base(adapter)) fill_factors(run, unit);
    else fill_magnitudes(run, unit, adapter, shard(unit));
    run.shards->reshard(unit);
    if (borrows) run.shards->reshard(owner);
  }
}

void start_adapters(Run& run) {
  if (!run.lora || !run.options.adapter.adapter_name_or_path.empty()) return;
  start_adapter(run, *run.lora, [&](std::size_t unit) -> fsdp::FlatShard& { return run.shards->trained(unit); });
}

}  // namespace shardtune::train
