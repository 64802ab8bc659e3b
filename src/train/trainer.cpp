#include "shardtune/train/trainer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "banner.h"
#include "check_base.h"
#include "ledger_report.h"
#include "output_folder.h"
#include "progress.h"
#include "resume.h"
#include "same_everywhere.h"
#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/comm/agree.h"
#include "shardtune/export/base_record.h"
#include "shardtune/export/carried_files.h"
#include "shardtune/export/export.h"
#include "shardtune/io/files.h"
#include "shardtune/train/metrics.h"
#include "shardtune/train/train_step.h"

namespace shardtune::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// What the adapter's folder tells of its base. Collective.
exporting::BaseRecord base_record(Run& run) {
  return {.fingerprint = base_fingerprint(run),
          .type = run.precision.base,
          .compute_type = run.precision.compute,
          .quantisation = run.lora->base_format};
}

/// The loop over optimizer steps with what happens between them. One object per run.
class Trainer {
 public:
  Trainer(Run& run, const options::ParseResult& parsed)
      : run_(run), parsed_(parsed), options_(run.options.train), communicator_(*run.communicator),
        progress_(run.communicator->rank() == 0) {
    state_.fixed = fixed_settings(run);
    if (communicator_.rank() == 0) writer_.emplace(options_.output_dir);
  }

  /// Goes on from a checkpoint that check_resume() has let pass.
  void resume(const std::filesystem::path& folder) {
    state_ = checkpoint::load(folder, state_, *run_.shards, *run_.optimizer, communicator_);
    if (run_.scaler) run_.scaler.emplace(state_.loss_scale, state_.good_steps);
    say(fmt::format("resumed from {} at step {}", folder.string(), state_.step));
  }

  void run() {
    const auto start = Clock::now();
    if (options_.eval_on_start && state_.step == 0) evaluate_now();
    window_start_ = Clock::now();
    const std::int64_t tokens_before = state_.num_tokens;
    const double loss_before = state_.loss_sum;
    const std::int64_t first = state_.step;
    while (state_.step < run_.total_steps) one_step();
    const double seconds = seconds_since(start);
    FinalMetrics final{.step = state_.step,
                       .epoch = epoch(),
                       .train_runtime = seconds,
                       .num_tokens = state_.num_tokens,
                       .peak_rss_bytes = peak_of_ranks(),
                       .step_ledger = step_peak_,
                       .step_collectives = step_collectives_};
    final.train_loss = (state_.loss_sum - loss_before) / static_cast<double>(state_.step - first);
    final.tokens_per_second = static_cast<double>(state_.num_tokens - tokens_before) / training_seconds_;
    export_result(final);
    say(fmt::format("memory of a step's tensors on rank 0: {:.4f} GB at most, in {}\n{}", gigabytes(step_peak_.bytes),
                    step_peak_.phase, ledger_table(step_peak_)));
    if (writer_) writer_->finish(final);
  }

 private:
  double epoch() const {
    return static_cast<double>(state_.position.epoch) +
           static_cast<double>(state_.position.step_in_epoch) / static_cast<double>(run_.steps_per_epoch);
  }

  double seconds_left() const {
    return training_seconds_ / static_cast<double>(steps_here_) * static_cast<double>(run_.total_steps - state_.step);
  }

  void say(const std::string& text) const {
    if (communicator_.rank() != 0) return;
    progress_.clear();
    std::fputs((text + "\n").c_str(), stdout);
    std::fflush(stdout);
  }

  std::int64_t peak_of_ranks() { return largest(peak_rss_bytes()); }

  std::int64_t largest(std::int64_t mine) {
    const auto peaks = communicator_.gather_values(mine);
    return *std::max_element(peaks.begin(), peaks.end());
  }

  void one_step() {
    const auto begin = Clock::now();
    run_.mesh->reset_counts();
    ledger().start_window();
    const StepResult result = train_step(run_, state_.position, state_.step);
    training_seconds_ += seconds_since(begin);
    step_peak_ = ledger().peak();
    step_collectives_ = run_.mesh->counts();
    window_peak_ = std::max(window_peak_, step_peak_.bytes);
    ++state_.step;
    ++steps_here_;
    state_.loss_sum += result.loss;
    state_.num_tokens += result.tokens;
    window_loss_ += result.loss;
    window_tokens_ += result.tokens;
    ++window_steps_;
    bool epoch_ended = false;
    if (++state_.position.step_in_epoch == run_.steps_per_epoch) {
      state_.position = {state_.position.epoch + 1, 0};
      epoch_ended = true;
    }
    const bool last = state_.step == run_.total_steps;
    if (result.skipped)
      say(fmt::format("step {}: the gradients overflowed in float16; the weights stay, the loss scale is now {}",
                      state_.step, run_.scaler->scale()));
    progress_.draw(state_.step, run_.total_steps, seconds_left());
    if (state_.step % options_.logging_steps == 0 || last) log(result);
    if (due(options_.eval_strategy, eval_steps(), epoch_ended, last)) evaluate_now();
    if (due(options_.save_strategy, options_.save_steps, epoch_ended, last)) save();
  }

  std::int64_t eval_steps() const { return options_.eval_steps > 0 ? options_.eval_steps : options_.logging_steps; }

  /// "epoch" also acts at the end of a run that --max_steps ends inside an epoch: its result would be lost otherwise.
  bool due(const std::string& strategy, std::int64_t every, bool epoch_ended, bool last) const {
    if (strategy == "steps") return state_.step % every == 0;
    if (strategy == "epoch") return epoch_ended || last;
    return false;
  }

  void log(const StepResult& result) {
    TrainMetrics metrics{.step = state_.step,
                         .total_steps = run_.total_steps,
                         .epoch = epoch(),
                         .loss = window_loss_ / static_cast<double>(window_steps_),
                         .grad_norm = result.grad_norm,
                         .learning_rate = result.learning_rate,
                         .tokens_per_second = static_cast<double>(window_tokens_) / seconds_since(window_start_),
                         .num_tokens = state_.num_tokens,
                         .peak_rss_bytes = peak_of_ranks(),
                         .peak_ledger_bytes = largest(window_peak_)};
    window_peak_ = 0;
    metrics.seconds_left = seconds_left();
    write([&] { writer_->train(metrics); });
    window_loss_ = 0;
    window_tokens_ = window_steps_ = 0;
    window_start_ = Clock::now();
  }

  void evaluate_now() {
    const auto start = Clock::now();
    const EvalResult result = evaluate(run_);
    write([&] { writer_->eval({state_.step, epoch(), result.loss, result.targets, seconds_since(start)}); });
    window_start_ += Clock::now() - start;  // evaluation does not count as training time
  }

  void save() {
    const auto start = Clock::now();
    check_weights_finite(run_);
    state_.optimizer_steps = run_.optimizer->steps_taken();
    if (run_.scaler) {
      state_.loss_scale = run_.scaler->scale();
      state_.good_steps = run_.scaler->good_steps();
    }
    const auto folder = checkpoint::save(options_.output_dir, state_, *run_.shards, *run_.optimizer, communicator_);
    write([&] { checkpoint::prune(options_.output_dir, options_.save_total_limit); });
    say(fmt::format("saved {}", folder.string()));
    window_start_ += Clock::now() - start;
  }

  /// Rank 0 writes; all ranks learn whether it worked.
  void write(const std::function<void()>& action) {
    progress_.clear();
    comm::agree_on_root(communicator_, action);
  }

  void export_result(const FinalMetrics& final) {
    check_weights_finite(run_);
    const std::filesystem::path folder = options_.output_dir, base = run_.options.model.model_name_or_path;
    if (run_.lora) {
      exporting::write_adapter(folder, *run_.lora, base.string(), *run_.shards, communicator_, run_.precision.trained);
      const exporting::BaseRecord record = base_record(run_);
      write([&] { exporting::write_base_record(folder, record); });
    } else {
      exporting::write_model(folder, base, run_.precision.result, *run_.shards, communicator_);
    }
    write([&] {
      exporting::write_extras(
          folder, base, run_.lora.has_value(),
          {base.string(), run_.options.data.dataset_name, state_.step, final.train_loss, given_options(parsed_)});
    });
    say(fmt::format("wrote the {} to {}", run_.lora ? "adapter" : "model", folder.string()));
  }

  Run& run_;
  const options::ParseResult& parsed_;
  const TrainOptions& options_;
  comm::Communicator& communicator_;
  ProgressBar progress_;
  std::optional<MetricsWriter> writer_;
  checkpoint::RunState state_;
  Clock::time_point window_start_ = Clock::now();
  double window_loss_ = 0, training_seconds_ = 0;
  LedgerPeak step_peak_;
  comm::Counts step_collectives_;
  std::int64_t window_peak_ = 0;
  std::int64_t window_tokens_ = 0, window_steps_ = 0, steps_here_ = 0;
};

void check_carried_files(const Run& run) {
  exporting::check_carried_files(run.options.model.model_name_or_path,
                                 run.lora ? exporting::ResultKind::kAdapter : exporting::ResultKind::kFullModel);
}

/// `replaces`: an old run lies in the folder; cleared when the new one has taken its place.
void run_in_prepared_folder(const options::ParseResult& parsed, comm::Communicator& communicator, bool& replaces) {
  std::filesystem::path resume;
  comm::agree(communicator, [&] { resume = resolve_resume(parsed.options); });
  const std::unique_ptr<Run> run =
      build_run(parsed.options, communicator, options::given_names(parsed.effective),
                {.before_weights =
                     [&](Run& built) {
                       comm::agree_on_root(communicator, [&] { check_carried_files(built); });
                       if (!resume.empty()) check_resume(built, resume, replaces);
                     },
                 .resumes = !resume.empty()});
  Trainer trainer(*run, parsed);
  comm::agree_on_root(communicator, [&] { print_banner(*run, parsed); });
  if (!resume.empty()) trainer.resume(resume);
  comm::agree_on_root(communicator, [&] {
    if (replaces) remove_old_run(parsed.options);
    replaces = false;
    for (const auto& moved : checkpoint::set_incomplete_aside(parsed.options.train.output_dir))
      fmt::print("a checkpoint without manifest.json is not complete; it is now {}\n", moved.string());
    io::write_file_atomic(std::filesystem::path(parsed.options.train.output_dir) / "run_options.json",
                          options::effective_as_json(parsed.effective));
  });
  trainer.run();
}

/// The run's end as the last line of metrics.jsonl, for whoever reads that file and not the log.
void record_error(const std::filesystem::path& output_dir, const comm::AgreedError& error) {
  try {
    MetricsWriter(output_dir).error(std::string(error_class_name(error.error_class())), error.what());
  } catch (const Error&) {
    // The folder became unusable (a full disk, say): the error at hand is the one to tell.
  }
}

}  // namespace

void train(const options::ParseResult& parsed, comm::Communicator& communicator) {
  check_same_options(parsed, communicator);
  bool replaces = false;
  std::optional<io::FolderLock> lock;  // of rank 0: two runs in one folder would mix their files
  comm::agree_on_root(communicator, [&] {
    replaces = prepare_output_folder(parsed.options, &lock);
    if (!lock->problem().empty())
      fmt::print("notice: --output_dir cannot be locked ({}); start no second run in it\n", lock->problem());
  });
  try {
    run_in_prepared_folder(parsed, communicator, replaces);
  } catch (const comm::AgreedError& error) {
    // An old run that was not replaced keeps its files as they are.
    if (communicator.rank() == 0 && !replaces) record_error(parsed.options.train.output_dir, error);
    throw;
  }
}

}  // namespace shardtune::train
