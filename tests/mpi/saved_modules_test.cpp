// Adapters that train more than linears of the layers: modules_to_save, the embedding, a tied head, single tokens. Curves
// against PEFT at every number of ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/io/safetensors.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

struct Reference {
  const char* model;
  const char* name;
  std::int64_t steps;
};

std::filesystem::path folder_of(const Reference& reference) {
  return data_folder() / "numerics" / reference.model / reference.name;
}

/// The folder that the run starts from. The Trainer's runs hold their start under PEFT's names in memory.
std::filesystem::path start_folder(const Reference& reference, SharedScratch& scratch) {
  const std::filesystem::path folder = folder_of(reference);
  if (std::filesystem::exists(folder / "start")) return folder / "start";
  on_rank_0([&] {
    std::filesystem::create_directories(scratch / "start");
    std::map<std::string, at::Tensor> tensors = read_tensors(folder / "start.safetensors");
    std::vector<io::TensorView> views;
    for (const auto& [name, tensor] : tensors) {
      std::string file_name = name;
      if (const auto at = file_name.find(".modules_to_save"); at != std::string::npos) file_name.erase(at, 16);
      views.push_back({file_name, Dtype::kF32, tensor.sizes().vec(), ops::bytes_of(tensor)});
    }
    io::write_safetensors(scratch / "start/adapter_model.safetensors", views, {{"format", "pt"}});
    std::filesystem::copy_file(folder / "adapter/adapter_config.json", scratch / "start/adapter_config.json");
  });
  return scratch / "start";
}

options::RunOptions run_options(const Reference& reference, SharedScratch& scratch) {
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics" / reference.model / "batches.safetensors");
    write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}), batches["train.labels"].view({80, 48}));
  });
  options::RunOptions options = plain_options(data_folder() / "models" / reference.model, scratch / "rows.jsonl");
  const auto settings = read_json(folder_of(reference) / "run.json")["settings"];
  options.adapter.adapter_name_or_path = start_folder(reference, scratch).string();
  options.train.max_steps = reference.steps;
  options.optim.learning_rate = settings["lr"];
  options.optim.lr_scheduler_type = settings["schedule"];
  options.optim.weight_decay = settings["weight_decay"];
  options.optim.max_grad_norm = settings["max_grad_norm"];
  return options;
}

class SavedModules : public ::testing::TestWithParam<Reference> {};

TEST_P(SavedModules, CurveIsThatOfPeft) {
  const Reference reference = GetParam();
  SharedScratch scratch;
  const auto expected = read_json(folder_of(reference) / "run.json")["steps"];
  const auto run = train::build_run(run_options(reference, scratch), world());
  for (std::int64_t step = 0; step < reference.steps; ++step) {
    const train::StepResult result = train::train_step(*run, reference_batches(*run, step), step);
    const auto& wanted = expected[static_cast<std::size_t>(step)];
    EXPECT_NEAR(result.loss, wanted["loss"].get<double>(), 2e-5) << "step " << step + 1;
    const double norm = wanted["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, 2e-5 * norm) << "step " << step + 1;
    if (step > 0 || !std::filesystem::exists(folder_of(reference) / "grads_step1.safetensors")) continue;
    const auto gradients = full_gradients(*run);
    for (const auto& [name, gradient] : read_tensors(folder_of(reference) / "grads_step1.safetensors")) {
      std::string own = name.substr(17);
      if (const auto at = own.find(".modules_to_save"); at != std::string::npos) own.erase(at, 16);
      EXPECT_LE(relative_l2(gradients.at(own), gradient), 1e-5) << own;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, SavedModules,
                         ::testing::Values(Reference{"tiny", "lora_modules_to_save", 20},
                                           Reference{"tiny-llama3", "lora_modules_to_save", 20},
                                           Reference{"tiny-llama3", "saved_embed", 8},
                                           Reference{"tiny-llama3", "saved_tied", 8},
                                           Reference{"tiny", "saved_norm_down", 8}, Reference{"tiny", "embed_lora", 8},
                                           Reference{"tiny-llama3", "embed_head_lora", 8}),
                         [](const auto& test) {
                           std::string name = std::string(test.param.model) + "_" + test.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace shardtune::testing
