#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shardtune/core/ledger.h"
#include "shardtune/data/rows.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train::plan {

/// What a run without training takes of memory: while it is built, and in its largest batch.
struct ForwardPlan {
  LedgerPeak load, pass;

  /// Of the rank, with its share of what `ranks_on_node` ranks have in common.
  std::int64_t needed_bytes(std::int64_t ranks_on_node) const;
};

/// Plays rank options.plan.rank of options.plan.world_size as make_plan() does: builds the run on shapes and evaluates `rows`,
/// which are one batch (none: the rank is left without). Installs the ledger for the Meta device; the CPU's is the caller's. Errors
/// as of make_plan().
ForwardPlan plan_evaluation(const options::RunOptions& options, const std::set<std::string>& explicitly_set,
                            const std::vector<data::Row>& rows);

/// One batch of generation.
struct PromptLengths {
  std::vector<std::int64_t> batch;  ///< tokens of the rank's prompts
  std::int64_t longest = 0;  ///< of all prompts of the run
};

/// Of the batches that generate() deals to a rank, the one with the most tokens.
PromptLengths largest_batch(const std::vector<std::int64_t>& prompt_tokens, std::int64_t batch_size, std::int64_t rank,
                            std::int64_t ranks);

/// The same for the continuation of one batch: the pass over the prompts, and the last one, when all keys and values are there.
ForwardPlan plan_generation(const options::RunOptions& options, const std::set<std::string>& explicitly_set,
                            const PromptLengths& prompts);

}  // namespace shardtune::train::plan
