#include <ATen/ATen.h>

#include "first_values.h"
#include "load_quantised.h"
#include "quantised_cache.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/stored_quantised.h"
#include "shardtune/comm/agree.h"
#include "shardtune/model/weights.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

struct WeightFiles {
  io::SafetensorsFolder base;
  std::optional<io::SafetensorsFolder> adapter;
};

std::shared_ptr<const WeightFiles> open_weight_files(const Run& run) {
  WeightFiles sources{io::SafetensorsFolder(run.options.model.model_name_or_path), std::nullopt};
  model::CheckPacked check_packed;
  if (run.config.quantisation)
    check_packed = [&](const model::Parameter& parameter, std::set<std::string>& known) {
      adapters::check_stored(sources.base, parameter, *run.lora->base_format, known);
    };
  model::check_weights(sources.base, run.model->units(), run.config.tied_embeddings, check_packed);
  if (run.lora && !run.options.adapter.adapter_name_or_path.empty()) {
    sources.adapter.emplace(run.options.adapter.adapter_name_or_path, "adapter_model");
    adapters::check_adapter_weights(*sources.adapter, run.model->units());
  }
  return std::make_shared<const WeightFiles>(std::move(sources));
}

namespace {

/// `quantised`: null when no weight is to be quantised. `cached`: the frozen bytes of units with quantised weights are there already.
void load_unit(Run& run, const WeightFiles& sources, std::size_t unit, QuantisedUnit* quantised, bool cached) {
  const auto load = [&](std::size_t slot, std::int64_t begin, std::int64_t end, const at::Tensor& part) {
    const model::Parameter& parameter = run.shards->spec(unit).parameters[slot];
    if (quantised != nullptr && parameter.packed_bytes > 0) quantised->read(sources.base, slot, begin, end, part);
    else if (parameter.trainable && sources.adapter)
      model::read_elements(*sources.adapter, adapters::peft_name(parameter.name), begin, part);
    else if (parameter.initial == model::Initial::kBase)
      model::read_base_elements(sources.base, parameter, parameter.first_element() + begin, part);
    else fill_first_values(part, begin, parameter, run.options.data.seed);
  };
  fsdp::FlatShard& frozen = run.shards->frozen(unit);
  if (!(cached && frozen.local().scalar_type() == at::kByte)) frozen.for_each_range(load);
  run.shards->trained(unit).for_each_range(load);
}

/// Ranks that quantise wait for each other at every unit, so a failure is agreed there.
void load_quantised(Run& run, const WeightFiles& sources) {
  std::optional<QuantisedCache> cache;
  if (!run.options.quant.quantised_cache.empty()) cache.emplace(run, sources.base);
  const bool cached = cache && cache->read();
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    QuantisedUnit quantised(run, unit);
    comm::agree(*run.communicator, [&] { load_unit(run, sources, unit, &quantised, cached); });
    if (!cached) quantised.finish();
  }
  if (!cache) return;
  if (!cached) cache->write();
  run.cache_note =
      cache->problem().empty() ? "" : fmt::format("warning: quantised cache not used: {}\n", cache->problem());
  run.cache_note +=
      fmt::format("quantised weights {} {}\n", cached ? "read from" : "kept in", cache->folder().string());
}

}  // namespace

void load_weights(Run& run, const WeightFiles& sources) {
  run.unlisted_tensors = sources.base.unlisted();
  if (run.lora && run.lora->base_format) return load_quantised(run, sources);
  comm::agree(*run.communicator, [&] {
    for (std::size_t unit = 0; unit < run.shards->units(); ++unit)
      load_unit(run, sources, unit, nullptr, /*cached=*/false);
  });
}

}  // namespace shardtune::train
