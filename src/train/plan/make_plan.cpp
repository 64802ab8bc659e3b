#include <chrono>

#include "shardtune/comm/ghost.h"
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/core/shape_only.h"
#include "shardtune/core/work.h"
#include "shardtune/train/plan.h"
#include "shardtune/train/train_step.h"

namespace shardtune::train {
namespace {

/// Adds the floating-point operations up.
class FlopCounter : public WorkListener {
 public:
  void compute(const ComputeWork& work) override {
    if (work.kind == ComputeKind::kMatmul) matmul_ += work.flops;
    else if (work.kind == ComputeKind::kAttention) attention_ += work.flops;
  }
  std::size_t start(const CollectiveWork&) override { return 0; }
  void await(std::size_t) override {}
  void phase(const std::string&) override {}

  double matmul() const { return matmul_; }
  double attention() const { return attention_; }

 private:
  double matmul_ = 0, attention_ = 0;
};

/// The rank's micro-batches of one step: alike on every rank.
std::vector<data::MicroBatch> step_batches(const Run& run) {
  std::vector<std::int64_t> rows(run.train_rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  const auto slots = static_cast<std::size_t>(run.options.train.gradient_accumulation_steps);
  return std::vector<data::MicroBatch>(slots, data::collate(run.train_rows, rows));
}

void count_weights(const Run& run, Plan& plan) {
  for (const auto& unit : run.model->units())
    for (const auto& parameter : unit.parameters) {
      if (parameter.borrowed) continue;
      plan.weights += parameter.elements();
      if (parameter.trainable) plan.trained_weights += parameter.elements();
    }
}

/// What writing a checkpoint and the result gathers: one unit's trained weights at a time.
void save_on_shapes(Run& run) {
  check_weights_finite(run);
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit)
    if (!run.shards->trained(unit).empty()) run.shards->gather_trained(unit, run.shards->trained(unit).local());
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

Plan make_plan(const options::RunOptions& options, const std::set<std::string>& explicitly_set) {
  const auto begin = std::chrono::steady_clock::now();
  static const bool installed = [] {
    // Token ids stay on the host in every run; they count as well.
    ops::install_ledger(c10::DeviceType::CPU);
    ops::install_ledger(c10::DeviceType::Meta);
    return true;
  }();
  (void)installed;
  const PlanOptions& job = options.plan;
  ops::set_planned_platform(job.device == "cpu" ? ops::Platform::kCpu : ops::Platform::kCuda);
  const auto world = comm::make_ghost_communicator(static_cast<int>(job.rank), static_cast<int>(job.world_size),
                                                   static_cast<int>(job.ranks_per_node));
  Plan plan;
  std::unique_ptr<Run> run;
  plan.load = peak_of("load", [&] {
    run = build_run(options, *world, explicitly_set,
                    ShapesOnly{.document_tokens = job.document_tokens, .trained_fraction = job.trained_fraction});
  });
  count_weights(*run, plan);
  const std::vector<data::MicroBatch> batches = step_batches(*run);
  train_step(*run, batches, 0);
  FlopCounter flops;
  run->mesh->reset_counts();
  plan.step = peak_of("step", [&] {
    const ListenScope listening(flops);
    const StepResult result = train_step(*run, batches, 1);
    plan.targets = result.targets;
    plan.tokens = result.tokens;
  });
  plan.collectives = run->mesh->counts();
  plan.matmul_flops = flops.matmul();
  plan.attention_flops = flops.attention();
  plan.save = peak_of("save", [&] { save_on_shapes(*run); });
  run.reset();
  plan.seconds_to_plan = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

}  // namespace shardtune::train
