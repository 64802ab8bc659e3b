#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "fit_report.h"
#include "ledger_report.h"
#include "plan/hardware.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/train/plan.h"

namespace shardtune::train {
namespace {

using nlohmann::ordered_json;

std::string gb(std::int64_t bytes) { return figure(gigabytes(bytes), 3); }

/// Whether a file that stands there may be replaced: nothing is in it, or what an earlier plan wrote, which begins with `opening`.
bool is_an_older_one(const std::string& file, std::string_view opening) {
  if (!std::filesystem::is_regular_file(file)) return true;
  std::string found(opening.size(), '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(found.data(), static_cast<std::streamsize>(found.size()));
  return in.gcount() == 0 || found == opening;
}

/// A plan may take minutes: a file that cannot be written is told before.
void check_can_write(const char* option, const std::string& file, std::string_view opening) {
  if (file.empty()) return;
  try {
    if (!std::filesystem::path(file).has_filename()) fail(ErrorClass::kUsage, "a file is wanted, this names a folder");
    const io::AtomicFile probe(file);
    if (!is_an_older_one(file, opening))
      fail(ErrorClass::kBadStorage, "the file holds something else than a plan; give another name, or move it away");
  } catch (const Error& error) {
    fail(error.error_class(), "option {} = {}: {}", option, file, error.what());
  }
}

std::string time_report(const StepTime& time) {
  const auto share = [&](double seconds) { return 100 * seconds / time.seconds; };
  return fmt::format(
      "\nestimated for {}: {} s a step, {:.0f} tokens/s over all ranks\n"
      "  products {:.0f} %, attention {:.0f} %, rows {:.0f} %, waiting for collectives {:.1f} %; the gathers take "
      "{} s, the exchanges {} s\n"
      "  of the device's peak: {:.1f} % by the model's own operations (MFU), {:.1f} % by all\n",
      time.device, figure(time.seconds, 2), time.tokens_per_second, share(time.matmul_seconds),
      share(time.attention_seconds), share(time.rows_seconds), share(time.exposed_seconds),
      figure(time.gather_seconds, 2), figure(time.reduce_seconds, 2), 100 * time.model_flops_share,
      100 * time.all_flops_share);
}

ordered_json as_json(const StepTime& time) {
  return {{"estimate", true},
          {"device", time.device},
          {"seconds", time.seconds},
          {"exposed_seconds", time.exposed_seconds},
          {"matmul_seconds", time.matmul_seconds},
          {"attention_seconds", time.attention_seconds},
          {"rows_seconds", time.rows_seconds},
          {"gather_seconds", time.gather_seconds},
          {"reduce_seconds", time.reduce_seconds},
          {"tokens_per_second", time.tokens_per_second},
          {"model_flops_share", time.model_flops_share},
          {"all_flops_share", time.all_flops_share}};
}

/// The device's memory beside what a rank takes of it, the context included.
std::string memory_verdict(const Plan& plan, const PlanOptions& job) {
  const auto device = static_cast<std::int64_t>(plan.time->device_bytes);
  const std::int64_t needed = needed_bytes(plan, job);
  return fmt::format("memory: {} GB at most, {}: {} the {} GB of {}\n", gb(needed),
                     job.device == "cuda"
                         ? fmt::format("of which about {:.1f} GB for the CUDA context and the buffers of the libraries",
                                       gigabytes(kCudaContextBytes))
                         : "with the rank's share of what the ranks of a node have in common",
                     needed <= device ? "fits" : "does not fit", gigabytes(device), plan.time->device);
}

std::string report(const Plan& plan, const PlanOptions& job) {
  std::string text =
      fmt::format("plan for rank {} of {} ({} a node, {}); nothing was loaded and nothing trained\n", job.rank,
                  job.world_size, counted(job.ranks_per_node, "rank"), job.device == "cuda" ? "GPUs" : "processors");
  text += fmt::format("weights: {}, of which {} are trained\n", plan.weights, plan.trained_weights);
  text += fmt::format(
      "a step: {}, {} over all ranks; {} TFLOP in matrix products, {} in attention "
      "on this rank\n",
      counted(plan.tokens, "token"), counted(plan.targets, "target"), figure(plan.matmul_flops / 1e12, 1),
      figure(plan.attention_flops / 1e12, 1));
  text += plan.activations;
  text += fmt::format(
      "collectives of a step: {} of {} GB, {} of {} GB, {}\n", counted(plan.collectives.all_gathers, "gather"),
      gb(static_cast<std::int64_t>(plan.collectives.all_gather_bytes)), counted(plan.collectives.exchanges, "exchange"),
      gb(static_cast<std::int64_t>(plan.collectives.exchange_bytes)),
      counted(plan.collectives.control, "control call"));
  text += fmt::format("\npeak of a step: {} GB, in {}\n", gb(plan.step.bytes), plan.step.phase);
  text += ledger_table(plan.step);
  text += fmt::format("peak while loading {} GB, while saving {} GB; on the host {} GB\n", gb(plan.load.bytes),
                      gb(plan.save.bytes),
                      gb(std::max({plan.load.host_bytes, plan.step.host_bytes, plan.save.host_bytes})));
  if (plan.time) text += time_report(*plan.time) + memory_verdict(plan, job);
  else if (job.device == "cuda")
    text +=
        fmt::format("beside this lie the CUDA context and the buffers of the libraries: about {:.1f} GB, not counted\n",
                    gigabytes(kCudaContextBytes));
  return text + fmt::format("planned in {:.2f} s\n", plan.seconds_to_plan);
}

ordered_json memory_json(const Plan& plan, const PlanOptions& job) {
  const std::int64_t needed = needed_bytes(plan, job);
  ordered_json json = {{"needed_bytes", needed}, {"device_bytes", nullptr}, {"fits", nullptr}};
  if (plan.time) {
    json["device_bytes"] = static_cast<std::int64_t>(plan.time->device_bytes);
    json["fits"] = needed <= static_cast<std::int64_t>(plan.time->device_bytes);
  }
  return json;
}

ordered_json as_json(const Plan& plan, const PlanOptions& job) {
  return {{"weights", plan.weights},
          {"trained_weights", plan.trained_weights},
          {"tokens", plan.tokens},
          {"targets", plan.targets},
          {"matmul_flops", plan.matmul_flops},
          {"attention_flops", plan.attention_flops},
          {"collectives", counts_json(plan.collectives)},
          {"load", ledger_json(plan.load)},
          {"step", ledger_json(plan.step)},
          {"save", ledger_json(plan.save)},
          {"memory", memory_json(plan, job)},
          {"time", plan.time ? as_json(*plan.time) : ordered_json()}};
}

/// What the hardware file settles: how many ranks a node can have when nobody said it, and how much memory there is to fit.
void apply_hardware(PlanOptions& job, const std::set<std::string>& explicitly_set) {
  if (job.hardware.empty()) return;
  const plan::Hardware hardware = plan::read_hardware(job.hardware);
  if (!explicitly_set.contains("ranks_per_node"))
    job.ranks_per_node = std::min<std::int64_t>(job.ranks_per_node, hardware.gpus_per_node);
  if (job.fit_gb * 1e9 > hardware.memory_bytes)
    fail(ErrorClass::kUsage,
         "option fit = {} GB is more than the {} GB of {} (memory_gb in {}); give at most that, or a file with the "
         "device's memory",
         job.fit_gb, hardware.memory_bytes / 1e9, hardware.device, job.hardware);
}

}  // namespace

void run_plan_command(const options::ParseResult& given) {
  options::ParseResult parsed = given;
  const std::set<std::string> explicitly_set = options::given_names(parsed.effective);
  check_can_write("plan_json", parsed.options.plan.json, "{\n  \"weights\":");
  check_can_write("trace", parsed.options.plan.trace, "{\"displayTimeUnit\":");
  apply_hardware(parsed.options.plan, explicitly_set);
  const PlanOptions& job = parsed.options.plan;
  Plan made;
  std::string text;
  if (job.fit_gb > 0) {
    const plan::Fit fit = plan::find_fit(parsed, explicitly_set);
    made = fit.fastest.front().plan;
    text = fit_report(fit, job);
  } else {
    made = make_plan(parsed.options, explicitly_set);
    text = report(made, job);
  }
  std::fputs(text.c_str(), stdout);
  if (!job.json.empty()) io::write_file_atomic(job.json, as_json(made, job).dump(2) + "\n");
}

}  // namespace shardtune::train
