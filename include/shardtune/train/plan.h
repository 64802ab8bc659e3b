#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/core/ledger.h"
#include "shardtune/data/rows.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// How long a step would take: an estimate from a hardware file's figures and the order of the work.
struct StepTime {
  std::string device;
  double device_bytes = 0;  ///< memory of one
  double seconds = 0;
  double exposed_seconds = 0;  ///< the compute stream waits for collectives
  double matmul_seconds = 0, attention_seconds = 0, rows_seconds = 0;  ///< of the compute stream
  double gather_seconds = 0, reduce_seconds = 0;  ///< their streams are busy
  double tokens_per_second = 0;  ///< all ranks
  /// Share of the peak that the model's own operations take: forward, gradients of the inputs and of what is trained, without
  /// what is computed again.
  double model_flops_share = 0;
  double all_flops_share = 0;  ///< with what is computed again
};

/// What one rank of a planned job needs. Everything is counted while the trainer's own code runs on shapes.
struct Plan {
  std::int64_t trained_weights = 0, weights = 0;
  std::string activations;  ///< which layers keep what, in words
  std::int64_t targets = 0, tokens = 0;  ///< of a step, all ranks
  std::int64_t computed_micro_batches = 0;  ///< of the step's; the others would have done the same again
  LedgerPeak load, step, save;
  comm::Counts collectives;  ///< of a step
  double matmul_flops = 0, attention_flops = 0;  ///< of a step
  std::optional<StepTime> time;  ///< with options.plan.hardware
  double seconds_to_plan = 0;
};

/// What the CUDA context and the buffers of the libraries take of a GPU, about: no plan counts them.
constexpr std::int64_t kCudaContextBytes = 1'500'000'000;

/// Memory that a rank needs at most, over load, step and save. On a GPU: of the device, with its context. On the CPU: of the
/// node, with the rank's share of what the ranks of the node have in common.
std::int64_t needed_bytes(const Plan& plan, const PlanOptions& job);

/// Plays rank options.plan.rank of options.plan.world_size: builds the run, takes two steps (the second is what counts: the
/// first one makes buffers) and gathers what a save gathers. `rows`: those of a micro-batch; none: as options.plan and
/// --max_length say. Reads config.json and nothing else. Installs the ledger for the Meta device; the CPU's is the caller's.
/// Error(kUsage) when the options contradict each other and for the hardware file, Error(kBadModel) for config.json.
/// Micro-batches of a step that would do again what the one before did are counted and not computed; `every_micro_batch`: all are
/// computed, which gives the same figures and takes longer.
Plan make_plan(const options::RunOptions& options, const std::set<std::string>& explicitly_set,
               const std::vector<data::Row>& rows = {}, bool every_micro_batch = false);

/// `shardtune plan`: makes the plan, or with --fit searches the best one, and prints it.
void run_plan_command(const options::ParseResult& parsed);

}  // namespace shardtune::train
