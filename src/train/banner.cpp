#include "banner.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <set>

#include "activation_policy.h"
#include "ledger_report.h"
#include "shardtune/adapters/start.h"
#include "shardtune/core/blas.h"
#include "shardtune/core/counted.h"
#include "shardtune/quant/options.h"

namespace shardtune::train {
namespace {

std::string describe_rows(const Run& run) {
  std::string text = fmt::format("training data: {}\n", data::describe(run.train_statistics));
  if (!run.eval_rows.empty()) text += fmt::format("evaluation data: {}\n", data::describe(run.eval_statistics));
  // A rank without a row in the first slot of the first step has none in the whole epoch.
  int idle = 0;
  for (int rank = 0; rank < run.communicator->size(); ++rank) idle += run.train_loader->rows(0, 0, 0, rank).empty();
  if (idle > 0)
    text += fmt::format(
        "warning: {} of {} ranks {} no training rows, because an epoch has {}; {} part with zero weight. Start fewer "
        "ranks{}\n",
        idle, run.communicator->size(), idle == 1 ? "gets" : "get",
        counted(run.communicator->size() - idle, "micro-batch", "micro-batches"), idle == 1 ? "it takes" : "they take",
        run.options.train.per_device_train_batch_size > 1 ? ", or lower --per_device_train_batch_size"
        : run.options.data.packing                        ? ", or lower --max_length"
                                                          : "");
  return text;
}

/// "model.layers.*.mlp.up_proj (30)": modules that differ in the layer's number only are one entry with their count.
std::string describe_modules(const std::set<std::string>& modules) {
  std::map<std::string, int> counts;
  for (const std::string& module : modules) {
    const std::string prefix = "model.layers.";
    const std::size_t dot = module.starts_with(prefix) ? module.find('.', prefix.size()) : std::string::npos;
    ++counts[dot == std::string::npos ? module : prefix + "*" + module.substr(dot)];
  }
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format(" {} ({})", name, count);
  return text;
}

/// Modules with a rank or scale of their own; "" for none.
std::string describe_patterns(const adapters::LoraConfig& lora) {
  std::string text;
  for (const std::string& module : lora.modules)
    if (lora.ranks.contains(module) || lora.alphas.contains(module))
      text += fmt::format("  {}: r {}, scale {:.6g}\n", module, lora.rank_of(module), lora.scaling_of(module));
  return text;
}

std::string describe_trained(const Run& run) {
  const auto [total, trained, tensors] = model::count_weights(run.model->units());
  return describe_adapter(run) + fmt::format("trained: {} of {} weights ({:.4f} %) in {}\n", trained, total,
                                             100.0 * static_cast<double>(trained) / static_cast<double>(total),
                                             counted(tensors, "tensor"));
}

/// What is in effect, whichever options said so.
std::string describe_policy(const fsdp::Policy& policy) {
  if (policy.shard_size == 1) return "every rank holds all weights";
  const std::string groups = fmt::format("weights in shards over {}", counted(policy.shard_size, "rank"));
  switch (policy.reshard) {
    case fsdp::Reshard::kAfterForward: return groups + ", let go after forward";
    case fsdp::Reshard::kAfterBackward: return groups + ", kept to backward";
    case fsdp::Reshard::kToInnerGroup:
      return fmt::format("{}, spread over {} after forward", groups, policy.inner_size);
  }
  return groups;
}

std::string describe_base_format(const Run& run) {
  if (!run.lora || !run.lora->base_format) return "";
  return ", the layers' linears as " + quant::describe(*run.lora->base_format);
}

LedgerPeak standing_ledger() {
  LedgerPeak now{.phase = "before the first step"};
  now.at_peak = now.own = ledger().live();
  return now;
}

}  // namespace

std::string describe_adapter(const Run& run) {
  if (!run.lora) return "";
  const auto& lora = *run.lora;
  std::string text;
  if (!lora.modules.empty())
    text = fmt::format("{}: r {}, alpha {}, scale {:.6g}, dropout {}, on {}:{}\n", lora.dora ? "DoRA" : "LoRA",
                       lora.rank, lora.alpha, lora.scaling(), lora.dropout, counted(lora.modules.size(), "module"),
                       describe_modules(lora.modules));
  text += describe_patterns(lora);
  if (adapters::starts_from_base(lora))
    text += fmt::format("start: {}; the factors of the base's weights stay beside the adapter, frozen\n", lora.start);
  if (lora.bias != "none") text += fmt::format("lora_bias {}: the model has no biases, nothing is added\n", lora.bias);
  if (!lora.saved_modules.empty())
    text += fmt::format("trained whole: {}:{}\n", counted(lora.saved_modules.size(), "module"),
                        describe_modules(lora.saved_modules));
  for (const auto& [module, tokens] : lora.token_rows)
    text += fmt::format("rows of tokens that are trained: {} of {}{}\n", tokens.size(), module,
                        lora.ties_token_rows && module == "lm_head" ? ", the same as the embedding's" : "");
  if (!run.options.adapter.other_adapters.empty())
    text += fmt::format("frozen adapters that take part: {}\n", run.options.adapter.other_adapters);
  return text;
}

std::string describe_model(const Run& run) {
  std::string text =
      fmt::format("ranks: {} over MPI, {} each, {}; {}; base in {}{}{}\n", run.communicator->size(),
                  counted(at::get_num_threads(), "thread"), ops::describe_blas(), describe_policy(run.policy),
                  type_name(run.precision.compute), describe_base_format(run),
                  run.shards->shares_base() ? ", shared by the ranks of a node" : "");
  text += fmt::format("model: {}, width {}, {}, {}, vocabulary {}{}\n", counted(run.config.layers, "layer"),
                      run.config.hidden_size, counted(run.config.heads, "head"),
                      counted(run.config.kv_heads, "key/value head"), run.config.vocab_size,
                      run.config.tied_embeddings ? ", tied embeddings" : "");
  if (!run.unlisted_tensors.empty())
    text += fmt::format(
        "notice: {} not in model.safetensors.index.json and left out: {}\n",
        counted(run.unlisted_tensors.size(), "tensor of the model's files is", "tensors of the model's files are"),
        fmt::join(run.unlisted_tensors, " "));
  text += run.cache_note;
  return text;
}

void print_banner(const Run& run, const options::ParseResult& parsed) {
  std::string text = options::format_effective(parsed.effective);
  text += describe_model(run);
  text += describe_activations(run);
  text += describe_trained(run);
  text += describe_rows(run);
  text += fmt::format("steps: {} ({} per epoch)\n", run.total_steps, run.steps_per_epoch);
  text += "memory of the tensors that stand before the first step, rank 0:\n" + ledger_table(standing_ledger());
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

namespace {

std::string describe_packing(const data::DataOptions& data) {
  if (!data.packing) return "False";
  return data.packing_strategy + (data.wrapped_attention == "row" ? "" : ", attention in " + data.wrapped_attention);
}

/// lora_alpha, and the modules that alpha_pattern gives another.
std::string describe_alphas(const adapters::LoraConfig& lora) {
  std::string text = fmt::format("{}", lora.alpha);
  for (const auto& [module, alpha] : lora.alphas)
    if (alpha != lora.alpha) text += fmt::format(", {} for {}", alpha, module);
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fixed_settings(const Run& run) {
  const auto& data = run.options.data;
  const auto& train = run.options.train;
  const std::string none = "-";
  const std::optional<quant::Format> format = run.lora ? run.lora->base_format : std::nullopt;
  const bool four_bit = format && format->four_bit();
  std::vector<std::pair<std::string, std::string>> settings = {
      {"use_peft_lora", run.lora ? "True" : "False"},
      {"use_4bit_quantization", four_bit ? quant::describe(*format) : "False"},
      {"use_8bit_quantization", format && !four_bit ? "True" : "False"},
      {"dtype", type_name(run.precision.compute)},
      {"shard_group_size", std::to_string(run.policy.shard_size)},  // of a checkpoint's files
      {"adapter_dtype", run.lora ? type_name(run.precision.trained) : none},
      {"lora_alpha", run.lora ? describe_alphas(*run.lora) : none},
      {"use_rslora", run.lora ? (run.lora->rank_stabilised ? "True" : "False") : none},
      {"lora_dropout", run.lora ? fmt::format("{}", run.lora->dropout) : none},
      {"dataset_name", data.dataset_name},
      {"max_length", std::to_string(data.max_length)},
      {"packing", describe_packing(data)},
      {"shuffle", data.shuffle ? "True" : "False"},
      {"seed", std::to_string(data.seed)},
      {"per_device_train_batch_size", std::to_string(train.per_device_train_batch_size)},
      {"gradient_accumulation_steps", std::to_string(train.gradient_accumulation_steps)},
      {"number of training rows", std::to_string(run.train_rows.size())}};
  // Only where it is more than how the weights began, as older checkpoints do not have it.
  if (run.lora && adapters::starts_from_base(*run.lora)) settings.emplace_back("init_lora_weights", run.lora->start);
  return settings;
}

std::string given_options(const options::ParseResult& parsed) {
  std::string text;
  for (const auto& option : parsed.effective)
    if (options::is_given(option)) text += option.name + " = " + option.value + "\n";
  return text;
}

}  // namespace shardtune::train
