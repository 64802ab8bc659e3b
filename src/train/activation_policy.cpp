#include "activation_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>

#include "free_memory.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"
#include "shardtune/core/ops.h"
#include "shardtune/model/piecewise_loss.h"
#include "shardtune/train/metrics.h"

namespace shardtune::train {
namespace {

/// The number behind `prefix`; nothing when the text is not of that form.
std::optional<std::int64_t> number_after(const std::string& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char *first = text.data() + prefix.size(), *last = text.data() + text.size();
  const auto [end, error] = std::from_chars(first, last, number);
  if (error != std::errc() || end != last || number < 1) return std::nullopt;
  return number;
}

constexpr std::string_view kInputsEvery = "inputs_every_";

/// The policy that is meant, after --gradient_checkpointing had its say.
std::string policy_name(const model::ModelOptions& options, const std::set<std::string>& explicitly_set) {
  const std::string& policy = options.activation_policy;
  if (!explicitly_set.contains("gradient_checkpointing")) return policy.empty() ? "auto" : policy;
  const std::string meant = options.gradient_checkpointing ? "recompute" : "keep";
  if (!policy.empty() && policy != meant)
    fail(ErrorClass::kUsage,
         "--activation_policy {} contradicts --gradient_checkpointing {}, which means {}; leave one of them out",
         policy, options.gradient_checkpointing ? "True" : "False", meant);
  return policy.empty() ? meant : policy;
}

struct Tokens {
  std::int64_t micro_batch = 0;
  std::int64_t slice = 0;  ///< what a layer takes at once, see model::LayerSaved
};

Tokens most_tokens(const Run& run) {
  // The longest rows of the data set could meet in one micro-batch.
  std::vector<std::int64_t> lengths;
  for (const data::Row& row : run.train_rows) lengths.push_back(static_cast<std::int64_t>(row.ids.size()));
  const auto rows =
      std::min<std::size_t>(lengths.size(), static_cast<std::size_t>(run.options.train.per_device_train_batch_size));
  std::partial_sort(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(rows), lengths.end(),
                    std::greater());
  Tokens out;
  for (std::size_t i = 0; i < rows; ++i) out.micro_batch += lengths[i];
  const std::int64_t longest = rows > 0 ? lengths[0] : 0;
  out.slice = std::min(out.micro_batch, std::max(longest, run.options.model.ffn_chunk_tokens));
  return out;
}

/// Of the tensors that stand so far.
std::int64_t live_bytes() {
  const BytesByPurpose live = ledger().live();
  return std::accumulate(live.begin(), live.end(), std::int64_t{0});
}

struct Estimate {
  std::int64_t least = 0;  ///< resident bytes with nothing kept
  std::int64_t per_layer = 0;  ///< more for each layer that is kept
};

/// Resident memory of this rank in a step. The slice of a layer that is computed again needs its intermediates once in any
/// case, their gradients beside them, and the loss three chunks of logits of 32 MiB.
Estimate estimate(const Run& run) {
  const bool all_at_once = run.options.train.accumulation_order == "layer_first";
  const std::int64_t walks = all_at_once ? run.options.train.gradient_accumulation_steps : 1;
  const auto [tokens, slice] = most_tokens(run);
  const std::int64_t input = run.config.hidden_size * static_cast<std::int64_t>(at::elementSize(run.precision.compute));
  const std::int64_t kept = kept_bytes_per_token(run.config, run.precision.compute);
  std::int64_t trained = 0;
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit)
    trained += run.shards->trained(unit).layout().shard_elements();
  Estimate out;
  std::int64_t resident = current_rss_bytes();
  if (run.shapes_only) resident = live_bytes();
  // Moments are there already; the fp64 sums of the gradients and their fp32 form come with the first step.
  out.least =
      resident + trained * 12 + tokens * (walks * run.config.layers + 2) * input + slice * 3 * kept + (96 << 20);
  // The loss in pieces keeps a sum in fp32 and the target's row for each position of a group.
  if (!run.model->head_stages().empty()) {
    const std::int64_t groups = model::loss_groups(tokens, run.config.hidden_size, run.precision.compute);
    out.least += walks * tokens * (input + 4 * run.config.hidden_size) / groups;
  }
  out.per_layer = walks * tokens * kept;
  return out;
}

std::int64_t layers_that_fit(const Run& run) {
  const double gib = run.options.model.memory_budget_gib;
  // A plan must not depend on the machine that makes it.
  if (run.shapes_only && gib == 0) return 0;
  const Estimate need = estimate(run);
  const std::int64_t budget = gib > 0 ? static_cast<std::int64_t>(gib * (1ll << 30))
                                      : current_rss_bytes() + free_memory_bytes(run.mesh->node().size()) / 10 * 8;
  if (gib > 0 && budget < need.least)
    fail(ErrorClass::kUsage,
         "--memory_budget_gib {}: a rank needs about {:.2f} GiB with every layer computed again; give at least that, "
         "start "
         "more ranks, or lower --per_device_train_batch_size or --max_length",
         gib, static_cast<double>(need.least) / (1ll << 30));
  return std::clamp<std::int64_t>((budget - need.least) / std::max<std::int64_t>(need.per_layer, 1), 0,
                                  run.config.layers);
}

}  // namespace

std::int64_t kept_bytes_per_token(const model::ModelConfig& config, at::ScalarType compute_type) {
  const auto width = static_cast<std::int64_t>(at::elementSize(compute_type));
  const std::int64_t query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
  // The attention kernel's own result is kept as well where it runs in a wider type.
  const bool wider = compute_type != at::kFloat && !(compute_type == at::kBFloat16 && ops::has_fast_bf16());
  return width * (2 * query + 2 * key + config.hidden_size + 2 * config.intermediate_size) + (wider ? 4 * query : 0) +
         4 * config.heads;
}

std::int64_t input_block(const model::ModelOptions& options) {
  return number_after(options.activation_policy, kInputsEvery).value_or(1);
}

std::vector<bool> choose_kept_layers(const Run& run, const std::set<std::string>& explicitly_set) {
  const auto layers = static_cast<std::size_t>(run.config.layers);
  std::vector<bool> kept(layers, false);
  std::int64_t from_the_end = 0;
  bool automatic = false;
  comm::agree(*run.communicator, [&] {
    const std::string policy = policy_name(run.options.model, explicitly_set);
    const auto every = number_after(policy, "every_"), last = number_after(policy, "last_");
    if (policy == "keep") from_the_end = run.config.layers;
    else if (last) from_the_end = std::min(*last, run.config.layers);
    else if (every)
      for (std::size_t layer = 0; layer < layers; layer += static_cast<std::size_t>(*every)) kept[layer] = true;
    else if (policy == "auto") {
      automatic = true;
      from_the_end = layers_that_fit(run);
    } else if (policy != "recompute" && !number_after(policy, kInputsEvery))
      fail(ErrorClass::kUsage,
           "--activation_policy '{}' is not known; allowed are recompute, keep, every_N (one layer in N keeps), last_K "
           "(the last K layers keep), inputs_every_N (one layer in N keeps its input and nothing else) and auto",
           policy);
    if (run.options.model.memory_budget_gib > 0 && !automatic)
      fail(ErrorClass::kUsage, "--memory_budget_gib is for --activation_policy auto, not for {}; leave one of them out",
           policy);
  });
  if (automatic)
    for (const std::int64_t rank : run.communicator->gather_values(from_the_end))
      from_the_end = std::min(from_the_end, rank);
  // The last layers: their intermediates live for the shortest time.
  for (std::int64_t i = 0; i < from_the_end; ++i) kept[layers - 1 - static_cast<std::size_t>(i)] = true;
  return kept;
}

std::string describe_activations(const Run& run) {
  const std::size_t kept = run.kept_layers, layers = run.model->layers();
  if (run.policy.input_block >= static_cast<std::int64_t>(layers) && run.policy.input_block > 1)
    return "activations: the input of the first layer alone is kept, everything else is computed again in backward\n";
  if (run.policy.input_block > 1)
    return fmt::format("activations: one layer input in {} is kept, everything else is computed again in backward\n",
                       run.policy.input_block);
  if (kept == layers) return "activations: all layers keep theirs\n";
  if (kept == 0) return "activations: all layers are computed again in backward\n";
  return fmt::format("activations: {} of {} layers {}, the others are computed again in backward\n", kept, layers,
                     kept == 1 ? "keeps its own" : "keep theirs");
}

}  // namespace shardtune::train
