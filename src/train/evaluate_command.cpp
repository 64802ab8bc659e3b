#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "banner.h"
#include "same_everywhere.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/train/evaluate.h"
#include "shardtune/train/train_step.h"

namespace shardtune::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kResults = "eval_results.json";

/// Before the work begins: that the results can be written in the end.
void prepare_output(const options::RunOptions& options) {
  const fs::path folder = options.train.output_dir;
  if (folder.empty()) return;
  io::ensure_writable_folder(folder);
  if (fs::is_directory(folder / kResults))
    fail(ErrorClass::kBadStorage, "--output_dir '{}': '{}' is a folder; move it away, or give another folder",
         folder.string(), kResults);
}

struct Results {
  EvalResult eval;
  double seconds = 0;
  double perplexity() const { return std::exp(eval.loss); }
  double accuracy() const { return static_cast<double>(eval.correct) / static_cast<double>(eval.targets); }
};

/// What was given, for this command or in vain.
std::string options_that_count(const options::ParseResult& parsed) {
  std::vector<options::EffectiveOption> given;
  std::ranges::copy_if(parsed.effective, std::back_inserter(given),
                       [](const auto& option) { return option.source != "default"; });
  return options::format_effective(given);
}

/// Names as Transformers and TRL have them in eval_results.json.
std::string as_json(const Results& results, const Run& run) {
  const options::RunOptions& options = run.options;
  nlohmann::ordered_json json = {{"eval_loss", results.eval.loss},
                                 {"perplexity", nullptr},
                                 {"eval_mean_token_accuracy", results.accuracy()},
                                 {"eval_targets", results.eval.targets},
                                 {"eval_correct", results.eval.correct},
                                 {"eval_rows", run.eval_statistics.rows},
                                 {"eval_runtime", results.seconds},
                                 {"model_name_or_path", options.model.model_name_or_path},
                                 {"adapter_name_or_path", nullptr},
                                 {"dataset_name", options.data.dataset_name}};
  if (std::isfinite(results.perplexity())) json["perplexity"] = results.perplexity();
  if (!options.adapter.adapter_name_or_path.empty() && options.adapter.use_peft_lora)
    json["adapter_name_or_path"] = options.adapter.adapter_name_or_path;
  return json.dump(2) + "\n";
}

void report(const Results& results, const Run& run) {
  fmt::print(
      "eval_loss  {:.6f}\nperplexity  {:.4f}\nmean_token_accuracy  {:.6f}  ({} of {} tokens)\nruntime  {:.1f} s\n",
      results.eval.loss, results.perplexity(), results.accuracy(), results.eval.correct, results.eval.targets,
      results.seconds);
  if (const fs::path folder = run.options.train.output_dir; !folder.empty()) {
    io::write_file_atomic(folder / kResults, as_json(results, run));
    fmt::print("wrote {}\n", (folder / kResults).string());
  }
  std::fflush(stdout);
}

}  // namespace

void run_evaluate_command(const options::ParseResult& parsed, comm::Communicator& communicator) {
  check_same_options(parsed, communicator);
  comm::agree_on_root(communicator, [&] { prepare_output(parsed.options); });
  const std::unique_ptr<Run> run =
      build_run(parsed.options, communicator, options::given_names(parsed.effective), {.kind = RunKind::kEvaluation});
  comm::agree_on_root(communicator, [&] {
    fmt::print("{}{}{}evaluation data: {}\n", options_that_count(parsed), describe_model(*run), describe_adapter(*run),
               data::describe(run->eval_statistics));
    std::fflush(stdout);
  });
  const auto start = Clock::now();
  Results results{.eval = evaluate(*run)};
  results.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  comm::agree_on_root(communicator, [&] { report(results, *run); });
}

}  // namespace shardtune::train
