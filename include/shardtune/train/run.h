#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shardtune/adapters/lora.h"
#include "shardtune/comm/mesh.h"
#include "shardtune/data/loader.h"
#include "shardtune/data/rows.h"
#include "shardtune/data/tokenizer.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/model/llama.h"
#include "shardtune/optim/optimizer.h"
#include "shardtune/options/run_options.h"
#include "shardtune/train/loss_scaler.h"
#include "shardtune/train/precision.h"
#include "shardtune/train/step_engine.h"

namespace shardtune::train {

struct Run;

/// A run on shapes alone, for the planner: no file but config.json is read, rows are made up as options.plan says or given,
/// tensors lie on the Meta device.
struct ShapesOnly {
  std::vector<data::Row> rows = {};  ///< of a micro-batch; none: made up
};

/// What a run is built for. All but training have the weights alone: no optimizer, no gradients, no training rows.
enum class RunKind {
  kTraining,
  kEvaluation,  ///< has the evaluation rows: of the test split, or of the file that the data set is
  kGeneration,  ///< has no data set
};

/// What a caller of build_run() has beside the options.
struct BuildRequest {
  RunKind kind = RunKind::kTraining;
  std::optional<ShapesOnly> shapes_only = std::nullopt;
  /// Adapters may come beside the run's own (RunAdapters), as with --other_adapters: modules that it trains whole do not take the
  /// place of the model's own.
  bool several_adapters = false;
  /// Called when everything is known and no weight is read yet, on all ranks: may refuse. Not for a run on shapes.
  std::function<void(Run& run)> before_weights = {};
  /// The caller will load a checkpoint: what new adapters take from the base's weights is in it and need not be worked out.
  bool resumes = false;
};

/// Everything a run consists of, in the order in which it is built. Members refer to earlier ones.
struct Run {
  options::RunOptions options;
  RunKind kind = RunKind::kTraining;
  comm::Communicator* communicator = nullptr;
  std::optional<ShapesOnly> shapes_only;
  std::unique_ptr<comm::Mesh> mesh;
  fsdp::Policy policy;
  model::ModelConfig config;
  /// The adapter of the run; nothing: full fine-tuning. Without modules: a quantised base alone, where nothing is trained.
  std::optional<adapters::LoraConfig> lora;
  std::shared_ptr<adapters::AdapterHosts> adapter_hosts;  ///< where the model takes further adapters
  std::vector<data::Row> train_rows, eval_rows;
  data::RowStatistics train_statistics, eval_statistics;
  std::unique_ptr<data::Loader> train_loader, eval_loader;
  std::unique_ptr<model::LlamaModel> model;
  std::unique_ptr<fsdp::ShardedModel> shards;
  std::unique_ptr<StepEngine> engine;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::size_t kept_layers = 0;  ///< keep their intermediates; the others are computed again in backward
  std::string base_fingerprint;  ///< of the model's files, once somebody asked for it
  std::string cache_note;  ///< a line about the quantised cache, "" for none
  std::vector<std::string> unlisted_tensors;  ///< in the model's files but not in their index: left out
  std::int64_t steps_per_epoch = 0, total_steps = 0;
  Precision precision;
  std::optional<LossScaler> scaler;  ///< of fp16
};

/// Reads options' files and builds the run. `explicitly_set` names the options that do not come from their default: those
/// may not contradict an adapter folder. Rank-local failures are agreed before each collective, and so is that all ranks
/// read the same. Collective.
std::unique_ptr<Run> build_run(const options::RunOptions& options, comm::Communicator& communicator,
                               const std::set<std::string>& explicitly_set = {}, const BuildRequest& request = {});

/// The files that the weights come from, opened.
struct WeightFiles;
/// Opens them and checks names, shapes and types in their headers. No communication. Error(kBadModel).
std::shared_ptr<const WeightFiles> open_weight_files(const Run& run);

/// Fills this rank's shards: base weights from the model folder (own byte ranges only, quantised on the way where asked for),
/// adapters from the PEFT folder or from the seed. Collective.
void load_weights(Run& run, const WeightFiles& files);

/// Which layers keep what: "activations: all layers keep theirs", a line.
std::string describe_activations(const Run& run);

/// Number of optimizer steps that --max_steps or --num_train_epochs ask for.
std::int64_t total_step_count(const TrainOptions& options, std::int64_t steps_per_epoch);

}  // namespace shardtune::train
