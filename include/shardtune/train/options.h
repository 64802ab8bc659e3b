#pragma once
#include <cstdint>
#include <string>

namespace shardtune::train {

struct TrainOptions {
  std::string output_dir;
  bool overwrite_output_dir = false;
  double num_train_epochs = 3;
  std::int64_t max_steps = -1;  ///< above 0: overrides num_train_epochs
  std::int64_t per_device_train_batch_size = 8;
  std::int64_t per_device_eval_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;
  std::string accumulation_order = "micro_batch_first";  ///< micro_batch_first | layer_first
  std::int64_t logging_steps = 10;
  std::string eval_strategy = "no";  ///< no | steps | epoch
  std::int64_t eval_steps = 0;  ///< 0: as logging_steps
  bool eval_on_start = false;
  std::string save_strategy = "epoch";  ///< no | steps | epoch
  std::int64_t save_steps = 500;
  std::int64_t save_total_limit = 0;  ///< 0: keep all
  bool ignore_plan = false;  ///< start even where the plan says that the memory does not suffice
  std::string resume_from_checkpoint;  ///< "", a folder, or "true" for the newest complete one in output_dir
};

/// What `shardtune generate` does; names and meanings as in Transformers.
struct GenerateOptions {
  std::string prompt;  ///< one prompt's text; "": those of `prompts`
  std::string prompts;  ///< JSON Lines file of prompts
  std::string output;  ///< JSON Lines file of the results; "": standard output
  std::int64_t max_new_tokens = 128;
  bool do_sample = false;  ///< false: greedy
  double temperature = 1;
  double top_p = 1;
  std::int64_t top_k = 0;  ///< 0: all tokens
};

/// What `shardtune plan` assumes of a job, besides the options of the run itself.
struct PlanOptions {
  std::int64_t world_size = 1;  ///< ranks of the job
  std::int64_t rank = 0;  ///< the one that is planned
  std::int64_t ranks_per_node = 8;
  std::string device = "cuda";  ///< cuda | cpu: whose kernels' memory is counted
  std::int64_t document_tokens = 0;  ///< of every document; 0: a row is one document
  double trained_fraction = 1;  ///< of a document's tokens, its last ones, that are trained on
  std::string hardware;  ///< file with the device's figures, for the time of a step; "": no time
  double fit_gb = 0;  ///< memory of a device, in 10^9 bytes, for which the fastest settings are searched; 0: no search
  std::string trace;  ///< file for the step's trace; "": none
  std::string json;  ///< file for the figures; "": none
};

}  // namespace shardtune::train
