#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shardtune/adapters/adapter_set.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

/// Several named adapters on the sharded base of one run: they are loaded, added and deleted, take part or do not, and one at a
/// time is trained, while the base's shards stay where they are. As in PEFT, adapters that take part add up; a DoRA adapter scales
/// what the base and the adapters before it, in the order in which they came, give; a module that one of them trains whole
/// (modules_to_save) is used in place of the model's, and only one of them may. The run begins with its own adapter, which
/// takes part and is trained.
///
/// All functions that change something are collective and must be called alike on all ranks: ranks that ask for different things
/// all get Error(kUsage), and nothing changes. A refusal (unknown name and the like) changes nothing either.
class RunAdapters {
 public:
  /// `run` was built with an adapter (which keeps the originals of modules that it trains whole: BuildRequest) and must outlive
  /// this. Error(kUsage).
  explicit RunAdapters(Run& run);

  std::vector<std::string> names() const { return set_.names(); }
  const adapters::LoraConfig& config(const std::string& name) const { return set_.config(name); }
  const std::string& trained() const { return trained_; }  ///< "": none
  const std::set<std::string>& active() const { return active_; }
  bool enabled() const { return enabled_; }

  /// A new adapter `config.name` that starts from the run's seed and the base's weights. It takes no part yet.
  void add(adapters::LoraConfig config);
  /// The adapter of a PEFT folder under `name`. It takes no part yet.
  void load(const std::string& name, const std::filesystem::path& folder);
  /// Deletes an adapter. The trained one cannot be.
  void remove(const std::string& name);
  /// The adapters that take part from now on; the trained one must be among them.
  void set_active(const std::set<std::string>& names);
  /// false: the base alone answers, until they are enabled again. Training needs them enabled.
  void set_enabled(bool enabled);
  /// This adapter takes part and is trained from now on, the others are frozen; "": none is. Each keeps its optimizer's state.
  void train(const std::string& name);
  /// Writes an adapter as a PEFT folder; rank 0 writes.
  void save(const std::string& name, const std::filesystem::path& folder);

 private:
  /// All ranks do `what` with the same `arguments`, or none does.
  void agree_on(const std::string& what, const std::string& arguments) const;
  void enter(const adapters::LoraConfig& config, const io::SafetensorsFolder* folder);
  void exchange_shards(const std::string& name);
  void set_trained(const std::string& name);
  void apply();

  Run& run_;
  std::optional<quant::Format> base_format_;
  adapters::AdapterSet set_;
  std::string trained_;
  std::set<std::string> active_;
  bool enabled_ = true;
  std::map<std::string, std::unique_ptr<optim::Optimizer>> resting_;  ///< of adapters that were trained before
};

/// Whether --other_adapters names folders of adapters, before anything large is read. No communication.
void check_other_adapters(const Run& run);
/// Whether one of them changes what would be gathered in pieces. No communication.
bool others_need_whole_tables(const options::RunOptions& options, const model::ModelConfig& model);
/// Error(kUsage) for modules that cannot be trained whole: those that the model's files hold quantised.
void check_saved_modules(const model::ModelConfig& model, const adapters::LoraConfig& lora);
/// The run's adapter folder and those of --other_adapters: each goes with the base that it tells of. Collective.
void check_bases(Run& run);
/// Those adapters, which take part from now on. Collective.
void load_other_adapters(Run& run);

}  // namespace shardtune::train
