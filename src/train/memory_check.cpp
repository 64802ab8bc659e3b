#include "memory_check.h"

#include <algorithm>

#include "free_memory.h"
#include "shardtune/comm/agree.h"
#include "shardtune/train/plan.h"

namespace shardtune::train {
namespace {

/// The longest rows of the data set could all meet in one micro-batch of each of a node's ranks: those that rank `rank` of
/// them would get. At least one row.
std::vector<data::Row> longest_rows(const Run& run, int rank) {
  std::vector<const data::Row*> rows;
  for (const data::Row& row : run.train_rows) rows.push_back(&row);
  const auto batch = static_cast<std::size_t>(run.options.train.per_device_train_batch_size);
  const std::size_t first = std::min(static_cast<std::size_t>(rank) * batch, rows.size() - 1);
  const std::size_t end = std::min(first + batch, rows.size());
  std::ranges::partial_sort(rows, rows.begin() + static_cast<std::ptrdiff_t>(end), std::greater(),
                            [](const data::Row* row) { return row->ids.size(); });
  std::vector<data::Row> longest;
  for (std::size_t i = first; i < end; ++i) longest.push_back(*rows[i]);
  return longest;
}

bool chooses_layers_itself(const model::ModelOptions& options, const std::set<std::string>& explicitly_set) {
  return (options.activation_policy.empty() && !explicitly_set.contains("gradient_checkpointing")) ||
         options.activation_policy == "auto";
}

options::RunOptions least_demanding(const Run& run, int ranks_per_node, const std::set<std::string>& explicitly_set) {
  options::RunOptions options = run.options;
  options.plan.world_size = run.communicator->size();
  options.plan.rank = run.communicator->rank();
  options.plan.ranks_per_node = ranks_per_node;
  options.plan.device = "cpu";
  // Micro-batches one after the other take what one takes.
  options.train.gradient_accumulation_steps =
      options.train.accumulation_order == "layer_first" ? run.train_loader->slots(0) : 1;
  if (chooses_layers_itself(options.model, explicitly_set)) {
    options.model.activation_policy = "recompute";
    options.model.memory_budget_gib = 0;  // is for auto
  }
  return options;
}

/// Of all ranks of a node together.
struct Need {
  std::int64_t bytes = 0, free_bytes = 0;
};

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1ll << 30); }

}  // namespace

void refuse_what_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set) {
  comm::Communicator& world = *run.communicator;
  const std::unique_ptr<comm::Communicator> node = world.split_by_node();
  const int node_ranks = node->size();
  for (const int other : world.gather_values(node_ranks))
    if (other != node_ranks) return;
  std::int64_t bytes = 0;
  comm::agree(world, [&] {
    const options::RunOptions options = least_demanding(run, node_ranks, explicitly_set);
    bytes = needed_bytes(make_plan(options, explicitly_set, longest_rows(run, node->rank())), options.plan);
  });
  Need own{.free_bytes = free_memory_bytes(1)};
  for (const std::int64_t rank : node->gather_values(bytes)) own.bytes += rank;
  const std::vector<Need> needs = world.gather_values(own);
  const auto short_of = std::ranges::find_if(needs, [](const Need& one) { return one.bytes > one.free_bytes; });
  if (short_of == needs.end()) return;
  throw comm::AgreedError(
      ErrorClass::kUsage,
      fmt::format(
          "this run does not fit: the {} rank{} of a node need{} {:.2f} GiB at most, when the longest rows meet, "
          "and {:.2f} GiB are free there; start more ranks on more nodes, lower "
          "--per_device_train_batch_size or --max_length{}, or give --ignore_plan to start all the same",
          node_ranks, node_ranks > 1 ? "s" : "", node_ranks > 1 ? "" : "s", gib(short_of->bytes),
          gib(short_of->free_bytes),
          chooses_layers_itself(run.options.model, explicitly_set) ? "" : ", take --activation_policy auto"));
}

}  // namespace shardtune::train
