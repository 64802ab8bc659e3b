#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shardtune/adapters/lora.h"
#include "shardtune/model/llama.h"

namespace shardtune::adapters {

/// Names come into paths and lists: Error(kUsage) for one with other characters than letters, digits, _ and -.
void check_adapter_name(const std::string& name);

/// The named adapters of one model: which there are and what they are. It enters their parameters into the model's units and takes
/// them out; the shards follow (fsdp::ShardedModel::add_adapter and the like). No communication.
class AdapterSet {
 public:
  /// `hosts` as lora_linear_factory() filled them for `model`, which was made with `first`.
  AdapterSet(std::shared_ptr<const AdapterHosts> hosts, const LoraConfig& first, model::LlamaModel& model);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return configs_.contains(name); }
  /// Error(kUsage) for a name that is not there; it lists those that are.
  const LoraConfig& config(const std::string& name) const;

  /// Enters the adapter config.name, which is not trained yet and keeps the originals of modules that it trains whole.
  /// Error(kUsage) for a name that is taken, and for a module that one adapter trains whole and another changes, as in PEFT.
  void add(const LoraConfig& config);
  void remove(const std::string& name);
  /// Error(kUsage) for adapters that cannot take part together: two that train the same module whole.
  void check_active(const std::set<std::string>& names) const;
  /// The same two for the frozen start of adapter `of` (start.h), which has a name that is not among names(). It stands with its
  /// adapter: to be removed first.
  void add_start(const LoraConfig& of);
  void remove_start(const std::string& of);
  /// Makes the parameters of `name` trainable and all others not; "": none.
  void mark_trained(const std::string& name);
  /// The model's units with the parameters of one adapter alone.
  std::vector<model::UnitSpec> parameters_of(const std::string& name) const;

 private:
  void enter(const LoraConfig& config);
  void leave(const std::string& name);

  std::shared_ptr<const AdapterHosts> hosts_;
  model::LlamaModel& model_;
  std::map<std::string, LoraConfig> configs_;
};

}  // namespace shardtune::adapters
