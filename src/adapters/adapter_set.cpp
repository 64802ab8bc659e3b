#include "shardtune/adapters/adapter_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::adapters {
namespace {

/// Names come into paths and lists.
void check_name(const std::string& name) {
  const bool good = !name.empty() &&
                    std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  if (!good) fail(ErrorClass::kUsage, "'{}' cannot name an adapter; letters, digits, _ and - can", name);
}

void check_may_be_one_of_several(const LoraConfig& config) {
  if (!config.saved_modules.empty())
    fail(ErrorClass::kUsage,
         "adapter '{}' trains whole modules (modules_to_save: {}); such an adapter must be the only one of a run",
         config.name, fmt::join(config.modules_to_save, ", "));
  if (config.modules.contains(kEmbedding))
    fail(ErrorClass::kUsage, "adapter '{}' changes {}; such an adapter must be the only one of a run", config.name,
         kEmbedding);
}

model::UnitSpec& unit_with(std::vector<model::UnitSpec>& units, const std::string& weight) {
  for (model::UnitSpec& unit : units)
    if (std::ranges::any_of(unit.parameters, [&](const auto& one) { return one.name == weight; })) return unit;
  fail(ErrorClass::kInternal, "no unit holds {}", weight);
}

}  // namespace

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
  check_name(config.name);
  if (contains(config.name))
    fail(ErrorClass::kUsage, "there is an adapter '{}' already; give another name, or delete it first", config.name);
  for (const auto& [name, other] : configs_) check_may_be_one_of_several(other);
  check_may_be_one_of_several(config);
  const bool head_in_pieces = !model_.head_stages().empty();
  if (head_in_pieces && config.modules.contains("lm_head"))
    fail(ErrorClass::kUsage, "adapter '{}' changes lm_head, which is gathered in {}; give --table_pieces 1",
         config.name, counted(model_.head_stages().size(), "piece"));
  for (AdapterHost* host : *hosts_) {
    if (head_in_pieces && host->weight() == "lm_head.weight") continue;
    host->add(config, unit_with(model_.units_for_adapters(), host->weight()));
  }
  for (model::UnitSpec& unit : model_.units_for_adapters())
    for (model::Parameter& parameter : unit.parameters)
      if (parameter.adapter == config.name) parameter.trainable = false;
  configs_.emplace(config.name, config);
}

void AdapterSet::remove(const std::string& name) {
  config(name);
  for (AdapterHost* host : *hosts_) host->remove(name);
  for (model::UnitSpec& unit : model_.units_for_adapters())
    for (model::Parameter& parameter : unit.parameters)
      if (parameter.adapter == name) {
        parameter.absent = true;
        parameter.trainable = false;
        parameter.adapter = "deleted";
      }
  configs_.erase(name);
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
