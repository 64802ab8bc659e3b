#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/data/loader.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/optim/optimizer.h"

namespace shardtune::checkpoint {

/// Good steps in a row after which the loss scale of fp16 doubles: a checkpoint's count of them is below.
constexpr std::int64_t kLossScaleGrowthSteps = 2000;

/// The few numbers beside the tensors that a run continues from.
struct RunState {
  std::int64_t step = 0;  ///< optimizer steps taken
  data::LoaderPosition position{};
  std::int64_t num_tokens = 0;
  std::int64_t optimizer_steps = 0;  ///< updates made: steps less those that the loss scaler skipped
  double loss_scale = 1;  ///< of fp16, with the good steps since it last changed
  std::int64_t good_steps = 0;
  double loss_sum = 0;  ///< over all steps, for the mean in the last line
  /// What decides the order and meaning of the data; a resumed run must agree in all of it. Text pairs, compared by name.
  std::vector<std::pair<std::string, std::string>> fixed{};
};

/// Writes OUTPUT_DIR/checkpoint-STEP: one HDF5 file per rank with the weights and each role of the optimizer's state as one
/// packed dataset, and manifest.json, written last. The folder appears by one rename when every rank has written and synced
/// its file; on any failure nothing appears and older ones stay. Returns the folder. Collective.
std::filesystem::path save(const std::filesystem::path& output_dir, const RunState& state, fsdp::ShardedModel& shards,
                           const optim::Optimizer& optimizer, comm::Communicator& communicator);

/// What a folder that save() wrote says of its run, compared with this one: manifest.json alone is read. Throws as load() does.
/// Collective.
RunState check(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
               const optim::Optimizer& optimizer, comm::Communicator& communicator);

/// Loads a folder that save() wrote, on the same number of ranks. Everything is checked against the manifest (parameters,
/// shapes, ranks, fixed settings, --optim, XXH3-128 of each dataset) before anything is overwritten. Error(kBadCheckpoint).
/// Collective.
RunState load(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
              optim::Optimizer& optimizer, comm::Communicator& communicator);

/// The checkpoint-STEP folders with a manifest, oldest first. This and what follows is for one rank; no communication.
std::vector<std::filesystem::path> complete_checkpoints(const std::filesystem::path& output_dir);

/// The last of them; nothing when there is none.
std::optional<std::filesystem::path> newest(const std::filesystem::path& output_dir);

/// Whether a file name is checkpoint-STEP, STEP being 1 to 15 digits.
bool is_checkpoint_name(std::string_view name);

/// Something that is called checkpoint-STEP and is neither a complete checkpoint nor the rest of one (files of ranks alone):
/// another program's, say. Never touched.
std::optional<std::filesystem::path> foreign_checkpoint(const std::filesystem::path& output_dir);

/// Renames rests of checkpoints, checkpoint-STEP folders that hold files of ranks and no manifest, to
/// incomplete-checkpoint-STEP: a run that goes on from an older one would meet them when it saves. save() leaves none; a
/// copy that was cut short, say, does. Returns the new names.
std::vector<std::filesystem::path> set_incomplete_aside(const std::filesystem::path& output_dir);

/// The step in the name of a checkpoint-STEP folder.
std::int64_t step_of(const std::filesystem::path& folder);

/// Removes the oldest complete checkpoints beyond `keep` (0: all stay).
void prune(const std::filesystem::path& output_dir, std::int64_t keep);

}  // namespace shardtune::checkpoint
