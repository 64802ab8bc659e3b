#include "validate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "shardtune/core/error.h"
#include "turned_off.h"
#include "value.h"

namespace shardtune::options {
namespace {

/// Options whose Needs are not met would be ignored without a word. In the order of the table, in which what is needed comes
/// first.
void check_needs(Winners& winners, RunOptions& options) {
  for (const OptionSpec& spec : option_table()) {
    const auto given = winners.find(spec.name);
    // An empty text ("adapter_name_or_path =") asks for nothing.
    if (!spec.needs || given == winners.end() || given->second.value.empty() || !given->second.in_effect) continue;
    // merge adds an adapter and needs no word that it does.
    if (options.command == "merge" && spec.needs->option == "use_peft_lora") continue;
    const OptionSpec& other = *find_option(spec.needs->option);
    const std::string value = value_text(other, options);
    const auto& wanted = spec.needs->values;
    if (std::find(wanted.begin(), wanted.end(), value) != wanted.end()) continue;
    if (turn_off(winners, spec.name, {other.name}, options)) continue;
    fail(ErrorClass::kUsage, "{}: option {} = {} does nothing while {} is {}; set {} to {}, or remove {}",
         given->second.place, spec.name, given->second.value, other.name, value, other.name, fmt::join(wanted, " or "),
         spec.name);
  }
}

/// What other commands have alone. `merge`, `evaluate` and `generate` can be given the file of a training run: its options that they do
/// not have are without effect.
void check_command(Winners& winners, RunOptions& options) {
  const std::string& command = options.command;
  const bool uses_results = command == "merge" || command == "evaluate" || command == "generate";
  for (auto& [name, given] : winners) {
    const OptionSpec& spec = *find_option(name);
    if (takes(command, spec)) continue;
    if (!uses_results || !takes("train", spec) || given.origin == Origin::kCommandLine)
      fail(ErrorClass::kUsage, "{}: option {} is for 'shardtune {}'; remove it from '{}'", given.place, name,
           fmt::join(commands_of(spec), "', 'shardtune "), command);
    given.source += ", without effect";
    given.in_effect = false;
    set_default(spec, options);
  }
}

/// Where nothing is trained, use_peft_lora means the adapter of adapter_name_or_path, which turns it on by itself.
void settle_adapter(const Winners& winners, RunOptions& options) {
  if (options.command != "evaluate" && options.command != "generate") return;
  adapters::AdapterOptions& adapter = options.adapter;
  const auto given = winners.find("use_peft_lora");
  if (given == winners.end()) adapter.use_peft_lora = !adapter.adapter_name_or_path.empty();
  if (adapter.use_peft_lora && adapter.adapter_name_or_path.empty())
    fail(ErrorClass::kUsage,
         "{}: option use_peft_lora = {}: no adapter is named; give adapter_name_or_path, or --use_peft_lora False for "
         "the model without one",
         given->second.place, given->second.value);
}

void check_generate(const Winners& winners, const RunOptions& options) {
  if (options.command != "generate") return;
  const train::GenerateOptions& generate = options.generate;
  if (generate.prompt.empty() && generate.prompts.empty())
    fail(ErrorClass::kUsage, "nothing to continue: give prompt (a text), or prompts (a JSON Lines file)");
  if (!generate.prompt.empty() && !generate.prompts.empty())
    fail(ErrorClass::kUsage, "options prompt ({}) and prompts ({}) contradict each other; remove one",
         winners.at("prompt").place, winners.at("prompts").place);
}

void check_warmup(Winners& winners, RunOptions& options) {
  const optim::OptimOptions& optim = options.optim;
  const auto given = winners.find("warmup_steps");
  if (given == winners.end()) return;
  const std::string& place = given->second.place;
  if (optim.warmup_steps >= 1 && optim.warmup_steps != std::floor(optim.warmup_steps)) {
    fail(ErrorClass::kUsage,
         "{}: option warmup_steps: '{}' is not allowed; expected a whole number of steps, or a share of all steps "
         "below 1",
         place, given->second.value);
  }
  if (optim.warmup_steps > 0 && optim.lr_scheduler_type == "constant" &&
      !turn_off(winners, "warmup_steps", {"lr_scheduler_type"}, options)) {
    fail(ErrorClass::kUsage,
         "{}: option warmup_steps = {} does nothing while lr_scheduler_type is constant; set lr_scheduler_type to "
         "constant_with_warmup, or remove warmup_steps",
         place, given->second.value);
  }
}

void check_loraplus(Winners& winners, RunOptions& options) {
  const auto given = winners.find("loraplus_lr_embedding");
  if (given == winners.end() || !given->second.in_effect || options.optim.loraplus_lr_ratio > 0 ||
      turn_off(winners, "loraplus_lr_embedding", {"loraplus_lr_ratio"}, options))
    return;
  fail(ErrorClass::kUsage,
       "{}: option loraplus_lr_embedding = {} does nothing while loraplus_lr_ratio is 0; give loraplus_lr_ratio, or "
       "remove loraplus_lr_embedding",
       given->second.place, given->second.value);
}

void check_quantisation(Winners& winners, RunOptions& options) {
  const auto place = [&](const char* name) -> const std::string& { return winners.at(name).place; };
  if (options.quant.use_4bit_quantization && options.quant.use_8bit_quantization)
    fail(ErrorClass::kUsage,
         "options use_4bit_quantization ({}) and use_8bit_quantization ({}) contradict each other; remove one, or set "
         "it to "
         "False",
         place("use_4bit_quantization"), place("use_8bit_quantization"));
  if (!options.quant.quantised_cache.empty() && !options.quant.use_4bit_quantization &&
      !options.quant.use_8bit_quantization &&
      !turn_off(winners, "quantised_cache", {"use_4bit_quantization", "use_8bit_quantization"}, options))
    fail(ErrorClass::kUsage,
         "{}: option quantised_cache = {} does nothing while the base is not quantised; give use_4bit_quantization or "
         "use_8bit_quantization, or remove quantised_cache",
         place("quantised_cache"), options.quant.quantised_cache);
  for (const auto& [name, on] : {std::pair("use_4bit_quantization", options.quant.use_4bit_quantization),
                                 std::pair("use_8bit_quantization", options.quant.use_8bit_quantization)})
    if (on && !options.adapter.use_peft_lora && (options.command == "train" || options.command == "plan"))
      fail(ErrorClass::kUsage,
           "{}: option {} = True: quantised weights cannot be trained; give use_peft_lora, or remove {} or set it "
           "to False",
           place(name), name, name);
}

void check_plan(const Winners& winners, const RunOptions& options) {
  const train::PlanOptions& plan = options.plan;
  if (!plan.trace.empty() && plan.hardware.empty())
    fail(ErrorClass::kUsage, "option trace needs a device: give hardware, for example configs/hardware/h100_sxm.ini");
  const auto normal = [](const std::string& file) { return std::filesystem::path(file).lexically_normal(); };
  if (!plan.trace.empty() && normal(plan.trace) == normal(plan.json))
    fail(ErrorClass::kUsage, "options trace ({}) and plan_json ({}) name the same file, {}; give two",
         winners.at("trace").place, winners.at("plan_json").place, plan.trace);
  if (plan.document_tokens > options.data.max_length)
    fail(ErrorClass::kUsage,
         "{}: option plan_document_tokens = {} is more than max_length = {}, the longest row; lower it, or raise "
         "max_length",
         winners.at("plan_document_tokens").place, plan.document_tokens, options.data.max_length);
  if (plan.fit_gb > 0 && plan.hardware.empty())
    fail(ErrorClass::kUsage, "option fit needs a device: give hardware, for example configs/hardware/h100_sxm.ini");
  if (plan.fit_gb > 0 && options.model.memory_budget_gib > 0)
    fail(ErrorClass::kUsage,
         "options fit and memory_budget_gib both say what memory there is, fit in 10^9 bytes and memory_budget_gib in "
         "2^30; remove memory_budget_gib");
}

}  // namespace

void check_required(const Winners& winners, std::string_view command) {
  std::vector<std::string_view> missing;
  const auto wanted = [&](const OptionSpec& spec) {
    if (command == "merge") return takes(command, spec) && (spec.required || spec.name == "adapter_name_or_path");
    if (command == "evaluate" && spec.name == "dataset_name") return true;
    return spec.required && (command == "train" || spec.name == "model_name_or_path");
  };
  for (const OptionSpec& spec : option_table())
    if (wanted(spec) && !winners.contains(spec.name)) missing.push_back(spec.name);
  if (missing.empty()) return;
  fail(ErrorClass::kUsage,
       "required option{} missing: {}; give {} on the command line (--{} VALUE) or in the file of --config",
       missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), missing.size() > 1 ? "them" : "it", missing.front());
}

void check_combinations(Winners& winners, RunOptions& options) {
  check_command(winners, options);
  settle_adapter(winners, options);
  check_needs(winners, options);
  check_warmup(winners, options);
  check_loraplus(winners, options);
  settle_activations(winners, options);
  check_quantisation(winners, options);
  check_plan(winners, options);
  check_generate(winners, options);
  // A named checkpoint may lie elsewhere and start a run that replaces the one in output_dir.
  if (options.train.overwrite_output_dir && options.train.resume_from_checkpoint == "true") {
    fail(ErrorClass::kUsage,
         "options resume_from_checkpoint ({}) and overwrite_output_dir ({}) contradict each other; remove one of them "
         "or set it to False, or name a checkpoint that lies elsewhere",
         winners.at("resume_from_checkpoint").place, winners.at("overwrite_output_dir").place);
  }
}

}  // namespace shardtune::options
