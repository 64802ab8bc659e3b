#include "support/runs.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/core/ops.h"
#include "shardtune/io/safetensors.h"

namespace shardtune::testing {

std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& path) {
  const io::SafetensorsFile file(path);
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, info] : file.tensors()) {
    at::Tensor tensor = at::empty(info.shape, ops::scalar_type(info.dtype));
    file.read(name, 0, ops::bytes_of(tensor));
    out[name] = tensor;
  }
  return out;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return nlohmann::json::parse(in);
}

void write_rows(const std::filesystem::path& path, const at::Tensor& ids, const at::Tensor& labels) {
  std::ofstream out(path);
  for (std::int64_t row = 0; row < ids.size(0); ++row) {
    const at::Tensor row_ids = ids[row].contiguous(), row_labels = labels[row].contiguous();
    const auto* first = row_ids.const_data_ptr<std::int64_t>();
    const auto* label = row_labels.const_data_ptr<std::int64_t>();
    out << nlohmann::json{{"input_ids", std::vector<std::int64_t>(first, first + row_ids.numel())},
                          {"labels", std::vector<std::int64_t>(label, label + row_labels.numel())}}
               .dump()
        << "\n";
  }
}

void make_adapter_folder(const std::filesystem::path& folder, const std::filesystem::path& weights,
                         const std::filesystem::path& config) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(weights, folder / "adapter_model.safetensors");
  std::filesystem::copy_file(config, folder / "adapter_config.json");
}

options::RunOptions plain_options(const std::filesystem::path& model, const std::filesystem::path& rows) {
  options::RunOptions o;
  o.command = "train";
  o.model.model_name_or_path = model.string();
  o.model.dtype = "float32";
  o.data.dataset_name = rows.string();
  o.data.shuffle = false;
  o.adapter.use_peft_lora = true;
  o.adapter.lora_dropout = 0;
  o.adapter.lora_target_modules = "all-linear";
  o.optim.lr_scheduler_type = "constant";
  o.train.per_device_train_batch_size = 1;
  o.train.per_device_eval_batch_size = 1;
  o.train.save_strategy = "no";
  return o;
}

void write_training_rows(const std::filesystem::path& file, const std::string& model) {
  auto batches = read_tensors(data_folder() / "numerics" / model / "batches.safetensors");
  write_rows(file, batches["train.input_ids"].view({80, 48}), batches["train.labels"].view({80, 48}));
}

void take_settings(options::RunOptions& options, const nlohmann::json& settings) {
  options.train.max_steps = 20;
  options.optim.learning_rate = settings["lr"];
  options.optim.lr_scheduler_type = settings["schedule"];
  options.optim.warmup_steps = settings["warmup_steps"];
  options.optim.weight_decay = settings["weight_decay"];
  options.optim.max_grad_norm = settings["max_grad_norm"];
}

void make_reference_start(const std::filesystem::path& folder, const std::string& model, const std::string& run) {
  const auto numerics = data_folder() / "numerics" / model;
  const nlohmann::json settings = read_json(numerics / run / "run.json")["settings"];
  std::map<std::string, at::Tensor> tensors = read_tensors(numerics / "lora/start.safetensors");
  if (const auto magnitudes = numerics / run / "magnitudes.safetensors"; std::filesystem::exists(magnitudes))
    tensors.merge(read_tensors(magnitudes));
  std::vector<io::TensorView> views;
  for (const auto& [name, tensor] : tensors)
    views.push_back({name, ops::dtype_of(tensor.scalar_type()), tensor.sizes().vec(), ops::bytes_of(tensor)});
  std::filesystem::create_directories(folder);
  io::write_safetensors(folder / "adapter_model.safetensors", views, {{"format", "pt"}});
  nlohmann::json config = read_json(data_folder() / "numerics/tiny/lora/adapter/adapter_config.json");
  config["r"] = settings["r"];
  config["lora_alpha"] = settings["alpha"];
  for (const char* key : {"use_rslora", "use_dora"}) config[key] = settings["lora"].value(key, false);
  std::ofstream(folder / "adapter_config.json") << config.dump();
}

options::RunOptions case_options(const std::filesystem::path& rows) {
  options::RunOptions options = plain_options(case_folder() / "base-gqa", rows);
  options.adapter.adapter_name_or_path = (case_folder() / "lora-start").string();
  options.optim.learning_rate = 1e-2;
  options.train.num_train_epochs = 2;
  return options;
}

std::vector<train::StepResult> run_steps(train::Run& run, std::int64_t first, std::int64_t last) {
  std::vector<train::StepResult> results;
  for (std::int64_t step = first; step < last; ++step)
    results.push_back(train::train_step(run, {step / run.steps_per_epoch, step % run.steps_per_epoch}, step));
  return results;
}

std::vector<data::MicroBatch> reference_batches(const train::Run& run, std::int64_t step) {
  std::vector<data::MicroBatch> batches;
  const std::int64_t ranks = run.communicator->size();
  for (std::int64_t row = run.communicator->rank(); row < (4 + ranks - 1) / ranks * ranks; row += ranks)
    batches.push_back(row < 4 ? data::collate(run.train_rows, {4 * step + row}) : data::MicroBatch());
  return batches;
}

namespace {

std::map<std::string, at::Tensor> gather_like(train::Run& run, const std::function<at::Tensor(std::size_t)>& shard_of) {
  std::map<std::string, at::Tensor> out;
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    if (run.shards->trained(unit).empty()) continue;
    const std::vector<at::Tensor> full = run.shards->gather_trained(unit, shard_of(unit));
    for (std::size_t slot = 0; slot < full.size(); ++slot)
      if (full[slot].defined()) out[run.shards->spec(unit).parameters[slot].name] = full[slot];
  }
  return out;
}

}  // namespace

std::map<std::string, at::Tensor> full_weights(train::Run& run) {
  return gather_like(run, [&](std::size_t unit) { return run.shards->trained(unit).local(); });
}

std::map<std::string, at::Tensor> full_gradients(train::Run& run) {
  return gather_like(run, [&](std::size_t unit) { return run.shards->reduced_gradient(unit); });
}

std::string weights_hash(train::Run& run) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  for (const auto& [name, tensor] : full_weights(run)) {
    const at::Tensor bytes = tensor.contiguous();
    XXH3_128bits_update(state, bytes.const_data_ptr(), static_cast<std::size_t>(bytes.nbytes()));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

double relative_l2(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  const double norm = at::norm(wide).item<double>();
  const double difference = at::norm(a.to(at::kDouble) - wide).item<double>();
  // Norms below 1e-6 are rounding noise in the reference itself: compared absolutely.
  return norm < 1e-6 ? difference : difference / norm;
}

}  // namespace shardtune::testing
