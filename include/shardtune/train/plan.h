#pragma once
#include <set>
#include <string>

#include "shardtune/comm/communicator.h"
#include "shardtune/core/ledger.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// What one rank of a planned job needs. Everything is counted while the trainer's own code runs on shapes.
struct Plan {
  std::int64_t trained_weights = 0, weights = 0;
  std::int64_t targets = 0, tokens = 0;  ///< of a step, all ranks
  LedgerPeak load, step, save;
  comm::Counts collectives;  ///< of a step
  double matmul_flops = 0, attention_flops = 0;  ///< of a step
  double seconds_to_plan = 0;
};

/// Plays rank options.plan.rank of options.plan.world_size: builds the run, takes two steps (the second is what counts: the first one
/// makes buffers) and gathers what a save gathers. Reads config.json and nothing else. Installs the ledger for the Meta device.
/// Error(kUsage) when the options contradict each other, Error(kBadModel) for config.json.
Plan make_plan(const options::RunOptions& options, const std::set<std::string>& explicitly_set);

/// `shardtune plan`: makes the plan and prints it.
void plan(const options::ParseResult& parsed);

}  // namespace shardtune::train
