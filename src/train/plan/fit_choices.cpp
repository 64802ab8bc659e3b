#include "fit_choices.h"

#include <algorithm>
#include <array>

#include "shardtune/core/error.h"

namespace shardtune::train::plan {
namespace {

constexpr std::int64_t kMostRows = 65'536;  // that --per_device_train_batch_size takes
constexpr std::array<std::int64_t, 3> kChunkTokens = {1024, 2048, 4096};

bool any_of(const std::set<std::string>& given, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* name) { return given.contains(name); });
}

std::int64_t row_tokens(const options::RunOptions& options) {
  const std::int64_t longest = options.data.max_length, document = options.plan.document_tokens;
  return options.data.packing || document == 0 ? longest : std::min(document, longest);
}

/// From the least memory to the least time. Of N layers' inputs made again, N lie beside the kept ones: beyond the root of
/// the number of layers nothing is saved.
std::vector<std::string> policies(std::int64_t layers) {
  std::vector<std::string> names;
  for (std::int64_t block = 2; block * block <= layers; block *= 2)
    names.insert(names.begin(), fmt::format("inputs_every_{}", block));
  names.emplace_back("recompute");
  for (std::int64_t kept = 1; kept < layers; ++kept) names.push_back(fmt::format("last_{}", kept));
  names.emplace_back("keep");
  return names;
}

}  // namespace

Choices::Choices(const options::RunOptions& options, const std::set<std::string>& given, std::int64_t layers)
    : options_(options), policies_(policies(layers)),
      strategy_(options.plan.world_size > 1 && options.fsdp.version == 1 &&
                !any_of(given, {"fsdp_sharding_strategy", "fsdp_reshard_after_forward", "shard_group_size"})),
      order_(!given.contains("accumulation_order")),
      split_(given.contains("per_device_train_batch_size") == given.contains("gradient_accumulation_steps")),
      chunk_(!given.contains("ffn_chunk_tokens")),
      policy_(!any_of(given, {"activation_policy", "gradient_checkpointing"})) {}

std::vector<std::string> Choices::strategies() const {
  if (!strategy_) return {options_.fsdp.sharding_strategy};
  std::vector<std::string> names = {"FULL_SHARD", "SHARD_GRAD_OP"};
  const std::int64_t ranks = options_.plan.world_size, per_node = options_.plan.ranks_per_node;
  if (ranks > per_node && ranks % per_node == 0) names.insert(names.end(), {"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"});
  return names;
}

Space Choices::space() const {
  const TrainOptions& train = options_.train;
  const std::int64_t rows = train.per_device_train_batch_size, micro_batches = train.gradient_accumulation_steps;
  Space space{.strategies = strategies(),
              .orders = {train.accumulation_order},
              .splits = {{rows, micro_batches}},
              .chunk_tokens = {options_.model.ffn_chunk_tokens},
              .policies = {options_.model.activation_policy}};
  if (order_) space.orders = {"micro_batch_first", "layer_first"};
  if (split_) space.splits = splits_of(rows * micro_batches, kMostRows);
  if (chunk_) {
    space.chunk_tokens.assign(kChunkTokens.begin(), kChunkTokens.end());
    space.row_tokens = row_tokens(options_);
  }
  if (policy_) space.policies = policies_;
  return space;
}

options::RunOptions Choices::apply(const Setting& setting) const {
  options::RunOptions options = options_;
  options.plan.trace.clear();
  options.fsdp.sharding_strategy = setting.strategy;
  options.train.accumulation_order = setting.order;
  options.train.per_device_train_batch_size = setting.rows;
  options.train.gradient_accumulation_steps = setting.micro_batches;
  options.model.ffn_chunk_tokens = setting.chunk_tokens;
  if (policy_) options.model.activation_policy = policies_.at(static_cast<std::size_t>(setting.policy));
  return options;
}

std::vector<std::pair<std::string, std::string>> Choices::named(const Setting& setting) const {
  std::vector<std::pair<std::string, std::string>> list;
  if (strategy_) list.emplace_back("fsdp_sharding_strategy", setting.strategy);
  if (order_) list.emplace_back("accumulation_order", setting.order);
  if (split_) {
    list.emplace_back("per_device_train_batch_size", fmt::format("{}", setting.rows));
    list.emplace_back("gradient_accumulation_steps", fmt::format("{}", setting.micro_batches));
  }
  if (chunk_) list.emplace_back("ffn_chunk_tokens", fmt::format("{}", setting.chunk_tokens));
  if (policy_) list.emplace_back("activation_policy", policies_.at(static_cast<std::size_t>(setting.policy)));
  return list;
}

}  // namespace shardtune::train::plan
