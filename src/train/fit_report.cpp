#include "fit_report.h"

#include <fmt/format.h>

#include "ledger_report.h"
#include "shardtune/core/counted.h"

namespace shardtune::train {
namespace {

std::string policy_name(const options::RunOptions& options) {
  if (!options.model.activation_policy.empty()) return options.model.activation_policy;
  return options.model.gradient_checkpointing ? "recompute" : "keep";
}

std::string row(const plan::PlannedSettings& one) {
  const TrainOptions& train = one.options.train;
  return fmt::format("{:>8} {:>9} {:>10.0f}  {:>6} x {:<5} {:>12}  {:<12} {:<18} {}\n", figure(gigabytes(one.bytes), 2),
                     figure(one.plan.time->seconds, 3), one.plan.time->tokens_per_second,
                     train.per_device_train_batch_size, train.gradient_accumulation_steps,
                     one.options.model.ffn_chunk_tokens, policy_name(one.options), train.accumulation_order,
                     one.options.fsdp.sharding_strategy);
}

}  // namespace

std::string fit_report(const plan::Fit& fit, const PlanOptions& job) {
  const plan::PlannedSettings& best = fit.fastest.front();
  const StepTime& time = *best.plan.time;
  std::string text = fmt::format(
      "settings for {} with {} GB, rank {} of {} ({} a node); an estimate, nothing was loaded and nothing "
      "trained\n",
      time.device, job.fit_gb, job.rank, job.world_size, counted(job.ranks_per_node, "rank"));
  if (job.device == "cuda")
    text += fmt::format("every peak below has {:.2f} GB in it for the CUDA context and the buffers of the libraries\n",
                        gigabytes(kCudaContextBytes));
  text += fmt::format("looked at {} with {} in {:.1f} s; the fastest that fit:\n\n", counted(fit.settings, "setting"),
                      counted(fit.plans, "plan"), fit.seconds);
  text += " peak GB    s/step   tokens/s    rows x micro chunk tokens  policy       order              strategy\n";
  for (const plan::PlannedSettings& one : fit.fastest) text += row(one);
  text += "\n#---- the fastest, for --config\n";
  text += fmt::format("# {} GB, {} s a step, {:.0f} tokens/s on {} x {}\n", figure(gigabytes(best.bytes), 2),
                      figure(time.seconds, 3), time.tokens_per_second, job.world_size, time.device);
  return text + options::effective_as_ini(fit.effective) + "#---- end\n";
}

}  // namespace shardtune::train
