#include "shardtune/train/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ledger_report.h"
#include "shardtune/io/files.h"

namespace shardtune::train {

using nlohmann::ordered_json;

namespace {

void log_line(const std::string& text) {
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

double gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1ll << 30); }

}  // namespace

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::int64_t current_rss_bytes() {
  std::ifstream statm("/proc/self/statm");  // in pages: size, resident, ...
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(0.0, std::round(seconds)));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

MetricsWriter::MetricsWriter(const std::filesystem::path& output_dir) : file_(output_dir / "metrics.jsonl") {}

void MetricsWriter::train(const TrainMetrics& m) {
  const ordered_json line = {{"step", m.step},
                             {"epoch", m.epoch},
                             {"loss", m.loss},
                             {"grad_norm", m.grad_norm},
                             {"learning_rate", m.learning_rate},
                             {"tokens_per_second", m.tokens_per_second},
                             {"num_tokens", m.num_tokens},
                             {"peak_rss_bytes", m.peak_rss_bytes},
                             {"peak_ledger_bytes", m.peak_ledger_bytes}};
  io::append_line(file_, line.dump());
  log_line(fmt::format(
      "step {}/{}  epoch {:.2f}  loss {:.4f}  grad_norm {:.4f}  lr {:.3e}  {:.0f} tokens/s  {} tokens  peak {:.2f} "
      "GiB/rank  left {}",
      m.step, m.total_steps, m.epoch, m.loss, m.grad_norm, m.learning_rate, m.tokens_per_second, m.num_tokens,
      gibibytes(m.peak_rss_bytes), format_duration(m.seconds_left)));
}

void MetricsWriter::eval(const EvalMetrics& m) {
  const ordered_json line = {{"step", m.step},
                             {"epoch", m.epoch},
                             {"eval_loss", m.eval_loss},
                             {"eval_targets", m.eval_targets},
                             {"eval_runtime", m.eval_runtime}};
  io::append_line(file_, line.dump());
  log_line(fmt::format("eval at step {}  epoch {:.2f}  eval_loss {:.4f}  perplexity {:.2f}  {} targets  {:.1f} s",
                       m.step, m.epoch, m.eval_loss, std::exp(m.eval_loss), m.eval_targets, m.eval_runtime));
}

void MetricsWriter::finish(const FinalMetrics& m) {
  const ordered_json line = {{"step", m.step},
                             {"epoch", m.epoch},
                             {"train_loss", m.train_loss},
                             {"train_runtime", m.train_runtime},
                             {"tokens_per_second", m.tokens_per_second},
                             {"num_tokens", m.num_tokens},
                             {"peak_rss_bytes", m.peak_rss_bytes},
                             {"step_ledger", ledger_json(m.step_ledger)},
                             {"step_collectives", counts_json(m.step_collectives)}};
  io::append_line(file_, line.dump());
  log_line(fmt::format("done at step {} in {}  mean loss {:.4f}  {:.0f} tokens/s  peak {:.2f} GiB/rank", m.step,
                       format_duration(m.train_runtime), m.train_loss, m.tokens_per_second,
                       gibibytes(m.peak_rss_bytes)));
}

void MetricsWriter::error(const std::string& error_class, const std::string& message) {
  io::append_line(file_, ordered_json{{"error_class", error_class}, {"error", message}}.dump());
}

}  // namespace shardtune::train
