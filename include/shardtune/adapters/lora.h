#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardtune/model/config.h"
#include "shardtune/model/linear.h"
#include "shardtune/quant/format.h"

namespace shardtune::adapters {

/// Which modules get an adapter, as the user or the folder put it. Empty texts and lists ask for nothing.
struct ModuleSelection {
  std::string targets{};  ///< as --lora_target_modules
  std::string excluded{};  ///< the same form; all-linear has no meaning here
  std::vector<std::int64_t> layers{};  ///< layers_to_transform: of the targets, those in these layers
  std::vector<std::string> layers_patterns{};  ///< names before the layer's number; none: the first number in the name
};

/// rank_pattern, alpha_pattern: values for the modules whose full name, or a dotted suffix of it, the regular expression
/// matches. In the order given: the first that matches counts.
template <typename T>
using Pattern = std::vector<std::pair<std::string, T>>;

/// What an adapter is: which modules, rank, scale, dropout, kind. A small value, made once.
struct LoraConfig {
  std::string name = "default";  ///< of this adapter among those of a model
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool rank_stabilised = false;
  std::set<std::string> modules;  ///< full module names
  std::optional<quant::Format> base_format{};  ///< in which the linears of the layers are stored; the head's never is
  bool dora = false;  ///< weight-decomposed: a trained magnitude for each output feature
  std::map<std::string, std::int64_t> ranks{};  ///< by full module name, where rank_pattern gives another than `rank`
  std::map<std::string, double> alphas{};  ///< the same for alpha_pattern
  std::set<std::string> saved_modules{};  ///< full names of modules that are trained whole (modules_to_save)
  /// What ranks, alphas, modules and saved_modules were made from; it is written back to adapter_config.json.
  Pattern<std::int64_t> rank_pattern{};
  Pattern<double> alpha_pattern{};
  ModuleSelection selection{};
  std::vector<std::string> modules_to_save{};
  /// The model's own weights stay beside the saved modules' copies: for when the adapter takes no part. Else the copies are the
  /// only ones.
  bool keeps_originals = false;
  /// trainable_token_indices: tokens whose rows are trained, by module (embedding, head). Of a tied model both have the same
  /// rows, which are one.
  std::map<std::string, std::vector<std::int64_t>> token_rows{};
  bool ties_token_rows = false;
  bool ties_saved_modules = false;  ///< ensure_weight_tying: trained copies of a tied table and head stay one
  std::string bias = "none";  ///< none | all | lora_only: which biases are trained; the models here have none
  std::string start = "true";  ///< init_lora_weights: how a new adapter begins
  std::string base_model{};  ///< base_model_name_or_path of the folder it was read from

  std::int64_t rank_of(const std::string& module) const;
  /// alpha / r, or alpha / sqrt(r) when rank-stabilised (rsLoRA), with the module's own alpha and r.
  double scaling_of(const std::string& module) const;
  /// The same for modules that no pattern matches.
  double scaling() const;
};

/// The embedding's full name; adapters on it have a form of their own.
constexpr const char* kEmbedding = "model.embed_tokens";

/// All linear modules of the layers and the head, as PEFT sees the model: candidates for targets.
std::vector<std::string> linear_modules(const model::ModelConfig& config);

/// Modules that are no linears: embedding, norms and what holds others, by full name.
std::vector<std::string> other_modules(const model::ModelConfig& config);

/// Resolves --lora_target_modules as PEFT does: "all-linear" (any case) is every linear of the layers, never the head; a list
/// entry matches a full module name or a dotted suffix; a text with a character that no module name has is one regular
/// expression (PCRE2, limited in length, nesting and steps) and must match the whole name. Unlike PEFT a list entry that
/// matches nothing is refused, and so is one that names a module that is no linear and not the embedding: Error(kUsage) with near
/// names.
std::set<std::string> resolve_targets(const std::string& targets, const model::ModelConfig& config);

/// "all-linear" in any case.
bool is_all_linear(const std::string& targets);

/// Whether a text of a selection is a list of names (else it is one pattern), and its entries.
bool is_list_of_modules(const std::string& text);
std::vector<std::string> list_of_modules(const std::string& text);

/// The modules that a selection means, as PEFT 0.21 finds them: targets without the excluded ones, and of a list of names only
/// those in the layers. Error(kUsage) for what matches nothing; messages name the options.
std::set<std::string> resolve_modules(const ModuleSelection& selection, const model::ModelConfig& config);

/// The modules that modules_to_save means, by full name, as PEFT has it: an entry stands for every module with a weight whose name
/// ends with it ("norm": all norms), or for all linears in it ("mlp"). Unlike PEFT an entry that fits none is refused:
/// Error(kUsage).
std::set<std::string> resolve_saved_modules(const std::vector<std::string>& entries, const model::ModelConfig& config);

/// Checks token_rows against the model, and gives a tied head those of the embedding. Error(kUsage).
void apply_token_rows(LoraConfig& lora, const model::ModelConfig& config);

/// Fills saved_modules from modules_to_save and takes them out of `modules`: a module that is trained whole gets no adapter. Tied
/// copies are both named or neither. Error(kUsage) for what cannot be together.
void apply_saved_modules(LoraConfig& lora, const model::ModelConfig& config);

/// Enters the copies of the saved modules' weights that `config`, which keeps the originals, trains.
void enter_saved_modules(const LoraConfig& config, std::vector<model::UnitSpec>& units);

/// Whether the adapter changes the embedding, the head or the final norm: tables must then be gathered whole.
bool needs_whole_tables(const LoraConfig& config);

/// A group of linears, or the embedding, that takes further adapters, and gives them up.
class AdapterHost {
 public:
  virtual ~AdapterHost() = default;
  /// Name of a weight of its unit: by it the unit is found.
  virtual std::string weight() const = 0;
  /// Enters the parameters of adapter config.name into `unit`, where it has modules here.
  virtual void add(const LoraConfig& config, model::UnitSpec& unit) = 0;
  virtual void remove(const std::string& name) = 0;
};
using AdapterHosts = std::vector<AdapterHost*>;

/// y = x W^T + scaling * (dropout(x) A^T) B^T for the modules in `config`, plain frozen linears for the others. The base is
/// frozen; A [r, in] and B [out, r] take part in the type they are gathered in, with sums in fp32. Only x is kept for
/// backward; dropped copies are made again from the key. Source: Hu et al., LoRA; PEFT's LoraLayer.
/// `hosts`, when given, gets the groups that the factory makes; the model owns them.
model::LinearGroupFactory lora_linear_factory(const LoraConfig& config,
                                              const std::shared_ptr<AdapterHosts>& hosts = nullptr);

}  // namespace shardtune::adapters
