#include "shardtune/train/run_adapters.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>

#include "check_base.h"
#include "first_values.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/start.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/core/list.h"
#include "shardtune/export/export.h"
#include "shardtune/model/weights.h"
#include "start_adapters.h"

namespace shardtune::train {

RunAdapters::RunAdapters(Run& run)
    : run_(run), base_format_(run.lora->base_format), set_(run.adapter_hosts, *run.lora, *run.model),
      trained_(run.lora->name), active_{run.lora->name} {
  if (!run.lora->saved_modules.empty() && !run.lora->keeps_originals)
    fail(ErrorClass::kUsage,
         "adapter '{}' trains modules in place of the model's own (modules_to_save: {}); build the run for several "
         "adapters",
         run.lora->name, fmt::join(run.lora->modules_to_save, ", "));
}

void RunAdapters::agree_on(const std::string& what, const std::string& arguments) const {
  const std::string text = what + '\n' + arguments;
  const std::uint64_t own = XXH3_64bits(text.data(), text.size());
  const std::vector<std::uint64_t> all = run_.communicator->gather_values(own);
  if (!std::ranges::all_of(all, [&](std::uint64_t one) { return one == all.front(); }))
    throw comm::AgreedError(ErrorClass::kUsage,
                            fmt::format("ranks ask for different changes of the adapters; this one for {} ({})", what,
                                        arguments.empty() ? "nothing" : arguments));
}

void RunAdapters::enter(const adapters::LoraConfig& config, const io::SafetensorsFolder* folder) {
  run_.shards->add_adapter(config.name, run_.model->units());
  if (run_.shapes_only) return;
  comm::agree(*run_.communicator, [&] {
    std::optional<io::SafetensorsFolder> base;
    if (folder == nullptr && !config.saved_modules.empty()) base.emplace(run_.options.model.model_name_or_path);
    for (std::size_t unit = 0; unit < run_.shards->units(); ++unit)
      run_.shards->adapter(config.name, unit)
          .for_each_range([&](std::size_t slot, std::int64_t begin, std::int64_t, const at::Tensor& part) {
            const model::Parameter& parameter = run_.shards->spec(unit).parameters[slot];
            if (folder != nullptr) model::read_elements(*folder, adapters::peft_name(parameter.name), begin, part);
            else if (parameter.initial == model::Initial::kBase)
              model::read_base_elements(*base, parameter, begin, part);
            else fill_first_values(part, begin, parameter, run_.options.data.seed);
          });
  });
}

void RunAdapters::add(adapters::LoraConfig config) {
  agree_on("add", fmt::format("{} {} {} {} {} {}", config.name, config.rank, config.alpha, config.dora,
                              fmt::join(config.modules, " "), fmt::join(config.saved_modules, " ")));
  config.base_format = base_format_;
  config.keeps_originals = true;
  comm::agree(*run_.communicator, [&] {
    check_saved_modules(run_.config, config);
    if (adapters::starts_from_base(config))
      fail(ErrorClass::kUsage,
           "adapter '{}': a new adapter beside others cannot start as {}; take true, gaussian or false", config.name,
           config.start);
    set_.add(config);
  });
  enter(config, nullptr);
  if (!config.dora || run_.shapes_only) return;
  run_.shards->set_active({config.name}, /*trained_takes_part=*/false);
  start_adapter(run_, config,
                [&](std::size_t unit) -> fsdp::FlatShard& { return run_.shards->adapter(config.name, unit); });
  apply();
}

void RunAdapters::load(const std::string& name, const std::filesystem::path& path) {
  agree_on("load", name + " from " + path.string());
  std::optional<io::SafetensorsFolder> files;
  adapters::LoraConfig config;
  comm::agree(*run_.communicator, [&] {
    config = adapters::read_lora_config(path, run_.config);
    config.name = name;
    config.dropout = run_.options.adapter.lora_dropout;
    config.base_format = base_format_;
    config.keeps_originals = true;
    check_saved_modules(run_.config, config);
    if (!run_.shapes_only) files.emplace(path, "adapter_model");
    set_.add(config);
    if (!files) return;
    try {
      adapters::check_adapter_weights(*files, set_.parameters_of(name));
    } catch (...) {
      set_.remove(name);
      throw;
    }
  });
  enter(config, files ? &*files : nullptr);
}

void RunAdapters::remove(const std::string& name) {
  agree_on("delete", name);
  comm::agree(*run_.communicator, [&] {
    set_.config(name);
    if (name == trained_)
      fail(ErrorClass::kUsage, "adapter '{}' is being trained and cannot be deleted; train another, or none, first",
           name);
  });
  if (adapters::starts_from_base(set_.config(name))) {
    set_.remove_start(name);
    run_.shards->remove_adapter(adapters::start_name(name), run_.model->units());
  }
  set_.remove(name);
  active_.erase(name);
  resting_.erase(name);
  run_.shards->remove_adapter(name, run_.model->units());
}

void RunAdapters::apply() {
  std::set<std::string> others = enabled_ ? active_ : std::set<std::string>{};
  others.erase(trained_);
  if (enabled_)
    for (const std::string& name : active_)
      if (adapters::starts_from_base(set_.config(name))) others.insert(adapters::start_name(name));
  run_.shards->set_active(std::move(others), enabled_ && active_.contains(trained_));
}

void RunAdapters::set_active(const std::set<std::string>& names) {
  agree_on("set_active", fmt::format("{}", fmt::join(names, ", ")));
  comm::agree(*run_.communicator, [&] {
    for (const std::string& name : names) set_.config(name);
    if (!trained_.empty() && !names.contains(trained_))
      fail(ErrorClass::kUsage, "adapter '{}' is being trained and must take part; train another, or none, first",
           trained_);
    set_.check_active(names);
  });
  active_ = names;
  apply();
}

void RunAdapters::set_enabled(bool enabled) {
  agree_on("set_enabled", enabled ? "true" : "false");
  enabled_ = enabled;
  apply();
}

void RunAdapters::exchange_shards(const std::string& name) {
  set_.mark_trained(name);
  run_.shards->set_trained(trained_, name, run_.model->units());
  trained_ = name;
}

void RunAdapters::set_trained(const std::string& name) {
  if (!trained_.empty()) resting_[trained_] = std::move(run_.optimizer);
  exchange_shards(name);
  run_.lora.reset();
  run_.optimizer.reset();
  if (name.empty()) return;
  run_.lora = set_.config(name);
  auto rested = resting_.extract(name);
  run_.optimizer = rested ? std::move(rested.mapped()) : optim::make_optimizer(run_.options.optim, *run_.shards);
}

void RunAdapters::train(const std::string& name) {
  agree_on("train", name);
  comm::agree(*run_.communicator, [&] {
    if (name.empty()) return;
    std::set<std::string> active = active_;
    active.insert(name);
    set_.check_active(active);
  });
  if (name != trained_) set_trained(name);
  if (!name.empty()) active_.insert(name);
  apply();
}

void RunAdapters::save(const std::string& name, const std::filesystem::path& folder) {
  agree_on("save", name + " to " + folder.string());
  comm::agree(*run_.communicator, [&] { set_.config(name); });
  const std::string before = trained_;
  // What is written is what is trained; the switch moves no data.
  if (name != before) exchange_shards(name);
  exporting::write_adapter(folder, set_.config(name), run_.options.model.model_name_or_path, *run_.shards,
                           *run_.communicator, run_.precision.trained);
  if (name != before) exchange_shards(before);
  apply();
}

namespace {

/// "a=FOLDER,b=FOLDER" in its order.
std::vector<std::pair<std::string, std::string>> named_folders(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (const std::string& entry : split_list("--other_adapters", text)) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size())
      fail(ErrorClass::kUsage,
           "--other_adapters: '{}' is not NAME=FOLDER; give for example style=out/style,facts=out/facts", entry);
    entries.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
    adapters::check_adapter_name(entries.back().first);
  }
  return entries;
}

}  // namespace

void check_other_adapters(const Run& run) {
  if (run.options.adapter.other_adapters.empty()) return;
  std::set<std::string> names = {run.lora->name};
  for (const auto& [name, folder] : named_folders(run.options.adapter.other_adapters)) {
    if (!names.insert(name).second)
      fail(ErrorClass::kUsage, "--other_adapters: the name '{}' is taken; the run's own adapter is '{}'", name,
           run.lora->name);
    adapters::read_lora_config(folder, run.config);
  }
}

bool others_need_whole_tables(const options::RunOptions& options, const model::ModelConfig& model) {
  if (options.adapter.other_adapters.empty()) return false;
  return std::ranges::any_of(named_folders(options.adapter.other_adapters), [&](const auto& other) {
    return adapters::needs_whole_tables(adapters::read_lora_config(other.second, model));
  });
}

void check_bases(Run& run) {
  const adapters::AdapterOptions& options = run.options.adapter;
  if (!options.use_peft_lora) return;
  if (!options.adapter_name_or_path.empty()) check_base_of(run, options.adapter_name_or_path);
  if (options.other_adapters.empty()) return;
  for (const auto& [name, folder] : named_folders(options.other_adapters)) check_base_of(run, folder);
}

void load_other_adapters(Run& run) {
  if (run.options.adapter.other_adapters.empty()) return;
  RunAdapters adapters(run);
  std::set<std::string> active = adapters.active();
  for (const auto& [name, folder] : named_folders(run.options.adapter.other_adapters)) {
    adapters.load(name, folder);
    active.insert(name);
  }
  adapters.set_active(active);
}

}  // namespace shardtune::train
