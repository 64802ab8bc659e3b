#include <ATen/ATen.h>
#include <xxhash.h>

#include <cmath>
#include <numbers>

#include "load_quantised.h"
#include "quantised_cache.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/stored_quantised.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/philox.h"
#include "shardtune/model/weights.h"
#include "shardtune/train/run.h"

namespace shardtune::train {
namespace {

/// Random numbers of a tensor: each element is a function of seed, name and its number, so every rank can make its own part.
class Draws {
 public:
  Draws(const std::string& name, std::uint64_t seed) : hash_(XXH3_64bits(name.data(), name.size())), seed_(seed) {}

  /// Word `which` (0 to 3) of block `block`, as a number between 0 and 1.
  double unit(std::uint64_t block, std::size_t which) const {
    const auto words = philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                   static_cast<std::uint32_t>(hash_), static_cast<std::uint32_t>(hash_ >> 32)},
                                  seed_);
    return (static_cast<double>(words[which]) + 0.5) / 4294967296.0;
  }

 private:
  std::uint64_t hash_, seed_;
};

/// Elements [begin, begin + n) of a uniform tensor in +-bound.
void fill_uniform(at::Tensor part, std::int64_t begin, const Draws& draws, double bound) {
  auto* out = part.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin + i);
    out[i] = static_cast<float>((2 * draws.unit(element / 4, element % 4) - 1) * bound);
  }
}

/// The same of a tensor that is normally distributed, by Box and Muller: two words an element.
void fill_normal(at::Tensor part, std::int64_t begin, const Draws& draws, double deviation) {
  auto* out = part.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin + i);
    const std::size_t pair = 2 * (element % 2);
    const double radius = deviation * std::sqrt(-2 * std::log(draws.unit(element / 2, pair)));
    out[i] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * draws.unit(element / 2, pair + 1)));
  }
}

/// First values of an adapter's parameter that no file holds.
void fill_start(const at::Tensor& part, std::int64_t begin, const model::Parameter& parameter, std::uint64_t seed) {
  const Draws draws(parameter.name, seed);
  if (parameter.initial == model::Initial::kLoraA)
    fill_uniform(part, begin, draws, 1.0 / std::sqrt(static_cast<double>(parameter.shape[1])));
  if (parameter.initial == model::Initial::kUnitNormal) fill_normal(part, begin, draws, 1);
  if (parameter.initial == model::Initial::kNormal)
    fill_normal(part, begin, draws, 1.0 / static_cast<double>(parameter.shape[0]));
}

}  // namespace

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

/// `cached`: the frozen bytes of units with quantised weights are there already.
void load_unit(Run& run, const WeightFiles& sources, std::size_t unit, QuantisedUnit& quantised, bool cached) {
  const auto load = [&](std::size_t slot, std::int64_t begin, std::int64_t end, const at::Tensor& part) {
    const model::Parameter& parameter = run.shards->spec(unit).parameters[slot];
    if (parameter.packed_bytes > 0) quantised.read(sources.base, slot, begin, end, part);
    else if (parameter.trainable && sources.adapter)
      model::read_elements(*sources.adapter, adapters::peft_name(parameter.name), begin, part);
    else if (parameter.initial == model::Initial::kBase)
      model::read_base_elements(sources.base, parameter, begin, part);
    else fill_start(part, begin, parameter, run.options.data.seed);
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
    comm::agree(*run.communicator, [&] { load_unit(run, sources, unit, quantised, cached); });
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
    for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
      QuantisedUnit none(run, unit);
      load_unit(run, sources, unit, none, /*cached=*/false);
    }
  });
}

}  // namespace shardtune::train
