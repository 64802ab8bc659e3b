#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "shardtune/comm/communicator.h"
#include "shardtune/core/ledger.h"

namespace shardtune::train {

/// One training line: values over the steps since the last line.
struct TrainMetrics {
  std::int64_t step = 0, total_steps = 0;
  double epoch = 0;
  double loss = 0;  ///< mean of the steps' losses since the last line
  double grad_norm = 0;  ///< of the last step, before clipping
  double learning_rate = 0;  ///< of the last step
  double tokens_per_second = 0;
  std::int64_t num_tokens = 0;  ///< since the start of training, all ranks
  std::int64_t peak_rss_bytes = 0;  ///< largest of any rank
  std::int64_t peak_ledger_bytes =
      0;  ///< most that the tensors of a step since the last line took, largest of any rank
  double seconds_left = 0;
};

struct EvalMetrics {
  std::int64_t step = 0;
  double epoch = 0;
  double eval_loss = 0;
  std::int64_t eval_targets = 0;
  double eval_runtime = 0;  ///< seconds
};

struct FinalMetrics {
  std::int64_t step = 0;
  double epoch = 0;
  double train_loss = 0;  ///< mean of all steps' losses of this run
  double train_runtime = 0;  ///< seconds
  double tokens_per_second = 0;
  std::int64_t num_tokens = 0;
  std::int64_t peak_rss_bytes = 0;
  LedgerPeak step_ledger{};  ///< of the last step, rank 0
  comm::Counts step_collectives{};  ///< of the last step, rank 0
};

/// Writes OUTPUT_DIR/metrics.jsonl (one JSON object a line, full precision) and the batch log. Only rank 0 has one.
class MetricsWriter {
 public:
  explicit MetricsWriter(const std::filesystem::path& output_dir);
  void train(const TrainMetrics& metrics);
  void eval(const EvalMetrics& metrics);
  void finish(const FinalMetrics& metrics);
  void error(const std::string& error_class, const std::string& message);

 private:
  std::filesystem::path file_;
};

/// Largest resident memory of this process so far, and that of now.
std::int64_t peak_rss_bytes();
std::int64_t current_rss_bytes();

/// "1:02:03", hours first.
std::string format_duration(double seconds);

}  // namespace shardtune::train
