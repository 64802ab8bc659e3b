#include <algorithm>
#include <set>

#include "option_table.h"

namespace shardtune::options {
namespace {

/// Those of `merge` that others have, too.
const std::set<std::string_view> kOfMerging = {"config",
                                               "help",
                                               "version",
                                               "model_name_or_path",
                                               "resize_token_embeddings",
                                               "dtype",
                                               "adapter_name_or_path",
                                               "use_4bit_quantization",
                                               "use_8bit_quantization",
                                               "bnb_4bit_quant_type",
                                               "use_nested_quant",
                                               "bnb_4bit_blocksize",
                                               "bnb_4bit_compute_dtype",
                                               "output_dir"};

/// Groups and options that only training has, and its plan.
const std::set<std::string_view> kTrainingGroups = {"Optimizer", "Training", "Evaluation and logging",
                                                    "Output and checkpoints"};
const std::set<std::string_view> kTrainingOptions = {
    "gradient_checkpointing", "use_reentrant",       "activation_policy",
    "memory_budget_gib",      "dataset_train_split", "shuffle",
    "fsdp_backward_prefetch", "reduce_dtype",        "lora_dropout"};
/// Those of its groups that others have, too.
const std::set<std::string_view> kOfEvaluation = {"per_device_eval_batch_size", "output_dir", "ignore_plan"};
const std::set<std::string_view> kOfGeneration = {"per_device_eval_batch_size", "chat_template_format", "seed",
                                                  "ignore_plan"};

bool evaluate_takes(const OptionSpec& spec) {
  if (kOfEvaluation.contains(spec.name)) return true;
  return !kTrainingGroups.contains(spec.group) && !kTrainingOptions.contains(spec.name) && spec.name != "seed";
}

bool generate_takes(const OptionSpec& spec) {
  if (kOfGeneration.contains(spec.name)) return true;
  return spec.group != "Data" && !kTrainingGroups.contains(spec.group) && !kTrainingOptions.contains(spec.name);
}

}  // namespace

const std::vector<std::string_view>& commands() {
  static const std::vector<std::string_view> names = {"train", "plan", "merge", "evaluate", "generate"};
  return names;
}

bool takes(std::string_view command, const OptionSpec& spec) {
  if (!spec.command.empty()) return spec.command == command;
  if (command == "merge") return kOfMerging.contains(spec.name);
  if (command == "evaluate") return evaluate_takes(spec);
  if (command == "generate") return generate_takes(spec);
  if (command == "plan") return spec.name != "ignore_plan";
  return true;
}

std::vector<std::string_view> commands_of(const OptionSpec& spec) {
  std::vector<std::string_view> having;
  std::ranges::copy_if(commands(), std::back_inserter(having), [&](auto command) { return takes(command, spec); });
  return having;
}

}  // namespace shardtune::options
