#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "alike.h"
#include "chrome_trace.h"
#include "hardware.h"
#include "shardtune/comm/ghost.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/core/shape_only.h"
#include "shardtune/core/work.h"
#include "shardtune/export/full_tensors.h"
#include "shardtune/train/plan.h"
#include "timeline.h"

namespace shardtune::train {
namespace {

/// One of the micro-batches of a step, which are alike, on every rank.
data::MicroBatch one_batch(const Run& run) {
  std::vector<std::int64_t> rows(run.train_rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  return data::collate(run.train_rows, rows);
}

/// What writing a checkpoint and the result takes.
void save_on_shapes(Run& run) {
  check_weights_finite(run);
  const at::ScalarType type = run.lora ? run.precision.trained : run.precision.result;
  exporting::gather_trained(*run.shards, *run.communicator, type);
}

template <std::size_t N>
double part_of(const std::array<double, N>& parts, ComputeKind kind) {
  return parts[static_cast<std::size_t>(kind)];
}

/// Operations of this rank's share of a step that the model itself asks for: two a weight and token in forward, two for the
/// gradient of the input and two for that of a trained weight. The embedding multiplies nothing.
double model_flops(const Run& run, const Plan& made) {
  double weights = 0, trained = 0;
  for (std::size_t unit = 1; unit < run.model->units().size(); ++unit)
    for (const auto& parameter : run.model->units()[unit].parameters) {
      if (parameter.table_rows > 0) continue;  // a piece of a table
      weights += static_cast<double>(parameter.elements());
      if (parameter.trainable) trained += static_cast<double>(parameter.elements());
    }
  if (!run.model->head_stages().empty())
    weights += static_cast<double>(run.config.vocab_size) * static_cast<double>(run.config.hidden_size);
  double pairs = 0;
  for (const data::Row& row : run.train_rows)
    for (const std::int32_t length : row.segments) pairs += 0.5 * length * (length + 1.0);
  // Attention makes two products in forward and five in backward.
  const auto width = static_cast<double>(run.config.heads * run.config.head_dim * run.config.layers);
  const double attention = 14 * pairs * width * static_cast<double>(run.options.train.gradient_accumulation_steps);
  const double tokens = static_cast<double>(made.tokens) / run.communicator->size();
  return tokens * (4 * weights + 2 * trained) + attention;
}

/// For a plan without time: only the operations' numbers are asked for.
plan::Hardware no_hardware() {
  plan::Hardware one;
  for (double* figure :
       {&one.bf16_flops_per_second, &one.fp16_flops_per_second, &one.fp32_flops_per_second,
        &one.memory_bytes_per_second, &one.link_bytes_per_second, &one.network_bytes_per_second, &one.matmul_efficiency,
        &one.attention_efficiency, &one.memory_efficiency, &one.intra_node_efficiency, &one.inter_node_efficiency})
    *figure = 1;
  return one;
}

double peak_flops(const Run& run, const plan::Hardware& hardware) {
  switch (run.precision.compute) {
    case at::kBFloat16: return hardware.bf16_flops_per_second;
    case at::kHalf: return hardware.fp16_flops_per_second;
    default: return hardware.fp32_flops_per_second;
  }
}

StepTime step_time(const Run& run, const Plan& made, const plan::Hardware& hardware, const plan::Totals& totals) {
  const double possible = totals.seconds * peak_flops(run, hardware);
  return {.device = hardware.device,
          .device_bytes = hardware.memory_bytes,
          .seconds = totals.seconds,
          .exposed_seconds = totals.exposed_seconds,
          .matmul_seconds = part_of(totals.compute_kind_seconds, ComputeKind::kMatmul),
          .attention_seconds = part_of(totals.compute_kind_seconds, ComputeKind::kAttention),
          .rows_seconds = part_of(totals.compute_kind_seconds, ComputeKind::kRows),
          .gather_seconds = totals.busy(plan::Stream::kGather),
          .reduce_seconds = totals.busy(plan::Stream::kReduce),
          .tokens_per_second = static_cast<double>(made.tokens) / totals.seconds,
          .model_flops_share = model_flops(run, made) / possible,
          .all_flops_share = (made.matmul_flops + made.attention_flops) / possible};
}

void check_job(const PlanOptions& job, const std::optional<plan::Hardware>& hardware) {
  if (job.rank >= job.world_size)
    fail(ErrorClass::kUsage, "option plan_rank = {}: the ranks of --world_size {} are 0 to {}", job.rank,
         job.world_size, job.world_size - 1);
  if (hardware && std::min(job.ranks_per_node, job.world_size) > hardware->gpus_per_node)
    fail(ErrorClass::kUsage,
         "option ranks_per_node = {}: a node of {} has {} (gpus_per_node in the hardware file); give at most that",
         job.ranks_per_node, hardware->device, counted(hardware->gpus_per_node, "GPU"));
}

/// Calls `part` and gives the peak of its time.
template <typename F>
LedgerPeak peak_of(const char* phase, F part) {
  ledger().set_phase(phase);
  ledger().start_window();
  part();
  return ledger().peak();
}

}  // namespace

std::int64_t needed_bytes(const Plan& plan, const PlanOptions& job) {
  std::int64_t device = 0, host = 0;
  for (const LedgerPeak* peak : {&plan.load, &plan.step, &plan.save}) {
    device = std::max(device, peak->bytes);
    host = std::max(host, peak->host_bytes);
  }
  if (job.device == "cuda") return device + kCudaContextBytes;
  return device + host / std::min(job.ranks_per_node, job.world_size);
}

Plan make_plan(const options::RunOptions& options, const std::set<std::string>& explicitly_set,
               const std::vector<data::Row>& rows, bool every_micro_batch) {
  const auto begin = std::chrono::steady_clock::now();
  ops::install_ledger(c10::DeviceType::Meta);
  const PlanOptions& job = options.plan;
  std::optional<plan::Hardware> hardware;
  if (!job.hardware.empty()) hardware = plan::read_hardware(job.hardware);
  check_job(job, hardware);
  ops::set_planned_platform(job.device == "cpu" ? ops::Platform::kCpu : ops::Platform::kCuda);
  const auto world = comm::make_ghost_communicator(static_cast<int>(job.rank), static_cast<int>(job.world_size),
                                                   static_cast<int>(job.ranks_per_node));
  Plan made;
  std::unique_ptr<Run> run;
  made.load = peak_of(
      "load", [&] { run = build_run(options, *world, explicitly_set, {.shapes_only = ShapesOnly{.rows = rows}}); });
  const model::WeightCounts weights = model::count_weights(run->model->units());
  made.weights = weights.total;
  made.trained_weights = weights.trained;
  made.activations = describe_activations(*run);
  const data::MicroBatch batch = one_batch(*run);
  const std::int64_t slots = options.train.gradient_accumulation_steps;
  plan::planned_step(*run, batch, slots, 0, every_micro_batch);
  plan::Timeline timeline(hardware.value_or(no_hardware()), !job.trace.empty());
  made.step = peak_of("step", [&] {
    const ListenScope listening(timeline);
    const plan::PlannedStep step = plan::planned_step(*run, batch, slots, 1, every_micro_batch);
    made.targets = step.result.targets;
    made.tokens = step.result.tokens;
    made.collectives = step.collectives;
    made.computed_micro_batches = step.computed;
  });
  const plan::Totals totals = timeline.totals();
  made.matmul_flops = part_of(totals.flops, ComputeKind::kMatmul);
  made.attention_flops = part_of(totals.flops, ComputeKind::kAttention);
  if (hardware) made.time = step_time(*run, made, *hardware, totals);
  if (!job.trace.empty()) plan::write_chrome_trace(job.trace, timeline.trace(), hardware->device);
  made.save = peak_of("save", [&] { save_on_shapes(*run); });
  run.reset();
  made.seconds_to_plan = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return made;
}

}  // namespace shardtune::train
