// Whether an evaluation or a generation fits, before a weight is read.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "forward_plan.h"
#include "free_memory.h"
#include "memory_check.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"

namespace shardtune::train {
namespace {

/// Of all ranks of a node together, in bytes.
struct NodeNeed {
  std::int64_t all = 0, free = 0;
  std::int64_t shards = 0, buffers = 0, cache = 0;  ///< of `all`; the rest is room to compute
  std::int64_t rest() const { return all - shards - buffers - cache; }
};

std::int64_t of_purpose(const plan::ForwardPlan& plan, Purpose purpose) {
  return plan.pass.at_peak[static_cast<std::size_t>(purpose)];
}

NodeNeed need_of(const plan::ForwardPlan& plan, std::int64_t node_ranks) {
  return {.all = plan.needed_bytes(node_ranks),
          .shards = of_purpose(plan, Purpose::kWeightShards) + plan.pass.host_bytes / node_ranks,
          .buffers = of_purpose(plan, Purpose::kGatherBuffers),
          .cache = of_purpose(plan, Purpose::kKeptActivations)};
}

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1ll << 30); }

/// The options that make the largest part smaller.
std::string advice(const NodeNeed& need, bool generates) {
  const std::int64_t most = std::max({need.shards, need.buffers, need.cache, need.rest()});
  if (most == need.shards)
    return "start more ranks on more nodes, or give --use_4bit_quantization or a smaller --dtype, for the weights";
  if (most == need.buffers)
    return "raise --table_pieces, or cut the model into smaller units (--fsdp_auto_wrap_policy)";
  if (most == need.cache) return "lower --per_device_eval_batch_size or --max_new_tokens";
  return generates ? "lower --per_device_eval_batch_size or --ffn_chunk_tokens"
                   : "lower --per_device_eval_batch_size, --max_length or --ffn_chunk_tokens";
}

/// Collective.
void refuse(const Run& run, const char* what,
            const std::function<plan::ForwardPlan(const options::RunOptions&)>& make) {
  comm::Communicator& world = *run.communicator;
  const std::unique_ptr<comm::Communicator> node = world.split_by_node();
  const int node_ranks = node->size();
  for (const int other : world.gather_values(node_ranks))
    if (other != node_ranks) return;
  NodeNeed of_rank;
  comm::agree(world, [&] {
    options::RunOptions options = run.options;
    options.plan.world_size = world.size();
    options.plan.rank = world.rank();
    options.plan.ranks_per_node = node_ranks;
    options.plan.device = "cpu";
    of_rank = need_of(make(options), node_ranks);
  });
  NodeNeed own{.free = free_memory_bytes(1)};
  for (const NodeNeed& rank : node->gather_values(of_rank)) {
    own.all += rank.all;
    own.shards += rank.shards;
    own.buffers += rank.buffers;
    own.cache += rank.cache;
  }
  const std::vector<NodeNeed> needs = world.gather_values(own);
  const auto short_of = std::ranges::find_if(needs, [](const NodeNeed& one) { return one.all > one.free; });
  if (short_of == needs.end()) return;
  const bool generates = run.kind == RunKind::kGeneration;
  throw comm::AgreedError(
      ErrorClass::kUsage,
      fmt::format(
          "this {} does not fit: the {} rank{} of a node need{} {:.2f} GiB at most (weight shards {:.2f}, gather "
          "buffers {:.2f}, {}the rest to compute), and {:.2f} GiB are free there; {}, or give --ignore_plan to "
          "start all the same",
          what, node_ranks, node_ranks > 1 ? "s" : "", node_ranks > 1 ? "" : "s", gib(short_of->all),
          gib(short_of->shards), gib(short_of->buffers),
          generates ? fmt::format("keys and values {:.2f}, ", gib(short_of->cache)) : "", gib(short_of->free),
          advice(*short_of, generates)));
}

std::int64_t tokens_of(const Run& run, const std::vector<std::int64_t>& rows) {
  std::int64_t tokens = 0;
  for (const std::int64_t row : rows) tokens += std::ssize(run.eval_rows[static_cast<std::size_t>(row)].ids);
  return tokens;
}

}  // namespace

void refuse_evaluation_that_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set) {
  refuse(run, "evaluation", [&](const options::RunOptions& options) {
    std::vector<std::int64_t> largest;
    for (std::int64_t step = 0; step < run.eval_loader->steps_per_epoch(); ++step) {
      const auto rows = run.eval_loader->rows(0, step, 0, run.communicator->rank());
      if (largest.empty() || tokens_of(run, rows) > tokens_of(run, largest)) largest = {rows.begin(), rows.end()};
    }
    std::vector<data::Row> rows;
    for (const std::int64_t row : largest) rows.push_back(run.eval_rows[static_cast<std::size_t>(row)]);
    return plan::plan_evaluation(options, explicitly_set, rows);
  });
}

void refuse_generation_that_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set,
                                       const std::vector<std::int64_t>& prompt_tokens) {
  refuse(run, "generation", [&](const options::RunOptions& options) {
    return plan::plan_generation(options, explicitly_set,
                                 plan::largest_batch(prompt_tokens, options.train.per_device_eval_batch_size,
                                                     run.communicator->rank(), run.communicator->size()));
  });
}

}  // namespace shardtune::train
