#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/train/train_step.h"
#include "support/scratch.h"

namespace shardtune::testing {

/// All tensors of a safetensors file.
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& file);
nlohmann::json read_json(const std::filesystem::path& file);

/// Writes rows [R, T] of ids and labels as JSON Lines with input_ids and labels.
void write_rows(const std::filesystem::path& file, const at::Tensor& ids, const at::Tensor& labels);
/// A PEFT folder made of a file of adapter weights and a configuration.
void make_adapter_folder(const std::filesystem::path& folder, const std::filesystem::path& weights,
                         const std::filesystem::path& config);

/// Options with everything quiet: fp32, no shuffling, no dropout, one row a micro-batch, constant rate, rows as they are.
options::RunOptions plain_options(const std::filesystem::path& model, const std::filesystem::path& rows);

/// Training rows of the reference curves: 20 steps of 4.
void write_training_rows(const std::filesystem::path& file, const std::string& model = "tiny");
/// The settings of a reference run ("settings" of its run.json): 20 steps with its rate, schedule, decay and clipping.
void take_settings(options::RunOptions& options, const nlohmann::json& settings);
/// The PEFT folder that a reference run started from: matrices of the run `lora`, and the run's own magnitudes with DoRA.
void make_reference_start(const std::filesystem::path& folder, const std::string& model, const std::string& run);

/// The same for the acceptance cases: their small model and adapter, two epochs over `rows`.
options::RunOptions case_options(const std::filesystem::path& rows);

/// Steps [first, last) of a run that was built; every rank gets all results.
std::vector<train::StepResult> run_steps(train::Run& run, std::int64_t first, std::int64_t last);

/// This rank's micro-batches of a step as the reference curves ran it: 4 rows, here one each to the ranks in turn; a rank may be
/// left without one.
std::vector<data::MicroBatch> reference_batches(const train::Run& run, std::int64_t step);

/// Trained parameters in full, on every rank, by name. Collective.
std::map<std::string, at::Tensor> full_weights(train::Run& run);
/// The same for the gradients of the step just taken (before clipping).
std::map<std::string, at::Tensor> full_gradients(train::Run& run);
/// Hash over the raw bytes of full_weights, in name order.
std::string weights_hash(train::Run& run);

/// ||a - b|| / ||b||.
double relative_l2(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardtune::testing
