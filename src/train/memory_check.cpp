#include "memory_check.h"

#include <algorithm>

#include "free_memory.h"
#include "shardtune/comm/agree.h"
#include "shardtune/train/plan.h"

namespace shardtune::train {
namespace {

/// The longest of the data set: all of them could meet in one micro-batch.
std::vector<data::Row> longest_rows(const Run& run) {
  std::vector<const data::Row*> rows;
  for (const data::Row& row : run.train_rows) rows.push_back(&row);
  const auto number = std::min(rows.size(), static_cast<std::size_t>(run.options.train.per_device_train_batch_size));
  std::ranges::partial_sort(rows, rows.begin() + static_cast<std::ptrdiff_t>(number), std::greater(),
                            [](const data::Row* row) { return row->ids.size(); });
  std::vector<data::Row> longest;
  for (std::size_t i = 0; i < number; ++i) longest.push_back(*rows[i]);
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

struct Need {
  std::int64_t bytes = 0, free_bytes = 0;
};

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1ll << 30); }

}  // namespace

void refuse_what_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set) {
  comm::Communicator& world = *run.communicator;
  const int node_ranks = world.split_by_node()->size();
  for (const int other : world.gather_values(node_ranks))
    if (other != node_ranks) return;
  Need own;
  comm::agree(world, [&] {
    own.free_bytes = free_memory_bytes(node_ranks);
    const options::RunOptions options = least_demanding(run, node_ranks, explicitly_set);
    own.bytes = needed_bytes(make_plan(options, explicitly_set, longest_rows(run)), options.plan);
  });
  const std::vector<Need> needs = world.gather_values(own);
  const auto short_of = std::ranges::find_if(needs, [](const Need& one) { return one.bytes > one.free_bytes; });
  if (short_of == needs.end()) return;
  throw comm::AgreedError(
      ErrorClass::kUsage,
      fmt::format("this run does not fit: a rank needs {:.2f} GiB at most, when the longest rows meet, and {:.2f} GiB "
                  "are free for each of the {} ranks of a node; start more ranks on more nodes, lower "
                  "--per_device_train_batch_size or --max_length{}, or give --ignore_plan to start all the same",
                  gib(short_of->bytes), gib(short_of->free_bytes), node_ranks,
                  chooses_layers_itself(run.options.model, explicitly_set) ? "" : ", take --activation_policy auto"));
}

}  // namespace shardtune::train
