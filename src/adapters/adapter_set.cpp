#include "shardtune/adapters/adapter_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardtune/adapters/start.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::adapters {
namespace {

/// PEFT's models have no module that one adapter trains whole and another changes.
void check_fit_together(const LoraConfig& one, const LoraConfig& other) {
  for (const std::string& module : one.saved_modules)
    if (other.modules.contains(module))
      fail(ErrorClass::kUsage,
           "adapter '{}' trains {} whole (modules_to_save), which adapter '{}' changes; the two cannot be of one model",
           one.name, module, other.name);
}

void check_rows_are_alone(const LoraConfig& config) {
  if (config.token_rows.empty()) return;
  fail(ErrorClass::kUsage,
       "adapter '{}' trains rows of single tokens (trainable_token_indices); such an adapter must be the only one of a "
       "run",
       config.name);
}

void check_tables_are_whole(const LoraConfig& config, const model::LlamaModel& model) {
  const std::size_t pieces = std::max(model.head_stages().size(), model.table_stages().size());
  if (pieces > 1 && needs_whole_tables(config))
    fail(ErrorClass::kUsage,
         "adapter '{}' changes embedding, final norm or head, whose tables are gathered in {}; give --table_pieces 1",
         config.name, counted(pieces, "piece"));
}

model::UnitSpec& unit_with(std::vector<model::UnitSpec>& units, const std::string& weight) {
  for (model::UnitSpec& unit : units)
    if (std::ranges::any_of(unit.parameters, [&](const auto& one) { return one.name == weight; })) return unit;
  fail(ErrorClass::kInternal, "no unit holds {}", weight);
}

}  // namespace

void check_adapter_name(const std::string& name) {
  const bool good = !name.empty() &&
                    std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  if (!good)
    fail(ErrorClass::kUsage, "'{}' cannot name an adapter (--other_adapters); letters, digits, _ and - can", name);
}

AdapterSet::AdapterSet(std::shared_ptr<const AdapterHosts> hosts, const LoraConfig& first, model::LlamaModel& model)
    : hosts_(std::move(hosts)), model_(model) {
  configs_.emplace(first.name, first);
}

std::vector<std::string> AdapterSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, config] : configs_) names.push_back(name);
  return names;
}

const LoraConfig& AdapterSet::config(const std::string& name) const {
  const auto found = configs_.find(name);
  if (found == configs_.end())
    fail(ErrorClass::kUsage, "there is no adapter '{}'; there {} {}", name, configs_.size() == 1 ? "is" : "are",
         configs_.empty() ? "none" : fmt::format("{}", fmt::join(names(), ", ")));
  return found->second;
}

void AdapterSet::add(const LoraConfig& config) {
  check_adapter_name(config.name);
  if (contains(config.name))
    fail(ErrorClass::kUsage, "there is an adapter '{}' already; give another name, or delete it first", config.name);
  if (!config.saved_modules.empty() && !config.keeps_originals)
    fail(ErrorClass::kInternal, "adapter '{}' would train modules in place of the model's", config.name);
  check_rows_are_alone(config);
  for (const auto& [name, other] : configs_) {
    check_rows_are_alone(other);
    check_fit_together(config, other);
    check_fit_together(other, config);
  }
  check_tables_are_whole(config, model_);
  enter(config);
  configs_.emplace(config.name, config);
}

void AdapterSet::enter(const LoraConfig& config) {
  for (AdapterHost* host : *hosts_) {
    if (!model_.head_stages().empty() && host->weight() == "lm_head.weight") continue;
    host->add(config, unit_with(model_.units_for_adapters(), host->weight()));
  }
  enter_saved_modules(config, model_.units_for_adapters());
  for (model::UnitSpec& unit : model_.units_for_adapters())
    for (model::Parameter& parameter : unit.parameters)
      if (parameter.adapter == config.name) parameter.trainable = false;
}

void AdapterSet::add_start(const LoraConfig& of) { enter(frozen_start(of)); }

void AdapterSet::remove_start(const std::string& of) { leave(start_name(of)); }

void AdapterSet::remove(const std::string& name) {
  config(name);
  leave(name);
  configs_.erase(name);
}

void AdapterSet::leave(const std::string& name) {
  for (AdapterHost* host : *hosts_) host->remove(name);
  for (model::UnitSpec& unit : model_.units_for_adapters())
    for (model::Parameter& parameter : unit.parameters)
      if (parameter.adapter == name) {
        parameter.absent = true;
        parameter.trainable = false;
        parameter.adapter = "deleted";
      }
}

void AdapterSet::check_active(const std::set<std::string>& names) const {
  std::map<std::string, std::string> trained_by;
  for (const std::string& name : names)
    for (const std::string& module : config(name).saved_modules)
      if (const auto [found, first] = trained_by.emplace(module, name); !first)
        fail(ErrorClass::kUsage,
             "adapters '{}' and '{}' both train {} whole (modules_to_save); only one of them can take part",
             found->second, name, module);
}

void AdapterSet::mark_trained(const std::string& name) {
  if (!name.empty()) config(name);
  for (model::UnitSpec& unit : model_.units_for_adapters())
    for (model::Parameter& parameter : unit.parameters)
      if (!parameter.adapter.empty()) parameter.trainable = parameter.adapter == name;
}

std::vector<model::UnitSpec> AdapterSet::parameters_of(const std::string& name) const {
  std::vector<model::UnitSpec> units = model_.units();
  for (model::UnitSpec& unit : units) {
    std::erase_if(unit.parameters, [&](const model::Parameter& one) { return one.adapter != name; });
    for (model::Parameter& parameter : unit.parameters) parameter.trainable = true;
  }
  return units;
}

}  // namespace shardtune::adapters
