#include "resume.h"

#include "banner.h"
#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"

namespace shardtune::train {
namespace {

/// The position must be the one that the step number means.
void check_position(const Run& run, const std::filesystem::path& folder, const checkpoint::RunState& state) {
  const data::LoaderPosition& at = state.position;
  const std::int64_t per_epoch = run.steps_per_epoch;
  if (state.step < 0 || at.epoch != state.step / per_epoch || at.step_in_epoch != state.step % per_epoch)
    throw comm::AgreedError(
        ErrorClass::kBadCheckpoint,
        fmt::format("{}: manifest.json: epoch {} and step_in_epoch {} do not belong to step {} with {} steps per epoch",
                    folder.string(), at.epoch, at.step_in_epoch, state.step, per_epoch));
}

/// Going on from an older checkpoint would meet the newer ones when it saves. Rank 0 alone knows `replaces`, so every rank
/// comes here.
void refuse_newer_checkpoints(const Run& run, const std::filesystem::path& folder, std::int64_t step, bool replaces) {
  comm::agree_on_root(*run.communicator, [&] {
    if (replaces) return;
    const auto newest = checkpoint::newest(run.options.train.output_dir);
    if (newest && checkpoint::step_of(*newest) > step)
      fail(ErrorClass::kBadCheckpoint,
           "{} is at step {}, but --output_dir holds the newer {}; resume from that, or move it away", folder.string(),
           step, newest->filename().string());
  });
}

}  // namespace

void check_resume(Run& run, const std::filesystem::path& folder, bool replaces) {
  const checkpoint::RunState state =
      checkpoint::check(folder, {.fixed = fixed_settings(run)}, *run.shards, *run.optimizer, *run.communicator);
  check_position(run, folder, state);
  refuse_newer_checkpoints(run, folder, state.step, replaces);
  if (state.step >= run.total_steps)
    throw comm::AgreedError(ErrorClass::kUsage,
                            fmt::format("{} is at step {}, the run ends at step {}: nothing is left to train; raise "
                                        "--num_train_epochs or --max_steps to go on",
                                        folder.string(), state.step, run.total_steps));
}

}  // namespace shardtune::train
