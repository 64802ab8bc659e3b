// Acceptance cases A19 and A41 over ranks; the numbers are those of the case files.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/core/ops.h"
#include "shardtune/export/export.h"
#include "shardtune/io/safetensors.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

std::filesystem::path uneven() { return case_folder() / "rows-uneven.jsonl"; }

/// One step over `rows`, dealt to any number of ranks.
train::StepResult step_over(train::Run& run, std::vector<data::Row> rows, std::int64_t step) {
  const std::int64_t count = static_cast<std::int64_t>(rows.size()), ranks = world().size();
  run.train_rows = std::move(rows);
  run.train_loader = std::make_unique<data::Loader>(count, 1, ranks, (count + ranks - 1) / ranks, false, 0);
  return train::train_step(run, {0, 0}, step);
}

TEST(CaseA19, NormBeforeClippingUnderEveryStrategy) {
  const auto steps = read_json(case_folder() / "rows-uneven-expected.json")["training_trace"]["steps"];
  std::vector<std::pair<const char*, int>> strategies = {
      {"FULL_SHARD", 0}, {"SHARD_GRAD_OP", 0}, {"NO_SHARD", 0}, {"HYBRID_SHARD", 0}};
  if (world().size() % 2 == 0) strategies.emplace_back("HYBRID_SHARD", 2);
  for (const auto& [sharding, group] : strategies) {
    options::RunOptions options = case_options(uneven());
    options.fsdp.sharding_strategy = sharding;
    options.fsdp.shard_group_size = group;
    const auto run = train::build_run(options, world());
    const std::vector<data::Row> rows = run->train_rows;
    for (std::size_t i = 0; i < 4; ++i) {  // rows 1 to 4, then 5 and 6, twice
      SCOPED_TRACE(std::string(sharding) + " group " + std::to_string(group) + " step " + std::to_string(i + 1));
      const auto first = rows.begin() + (i % 2 == 0 ? 0 : 4), last = i % 2 == 0 ? rows.begin() + 4 : rows.end();
      const auto result = step_over(*run, {first, last}, static_cast<std::int64_t>(i));
      EXPECT_EQ(result.targets, steps[i]["targets"].get<std::int64_t>());
      EXPECT_NEAR(result.loss, steps[i]["loss"].get<double>(), 2e-4);
      const double norm = steps[i]["grad_norm_before_clip"];
      EXPECT_NEAR(result.grad_norm, norm, 1e-3 * norm);
    }
  }
}

options::RunOptions bf16_options(const std::filesystem::path& rows) {
  options::RunOptions options = case_options(rows);
  options.model.dtype = "bfloat16";
  options.optim.learning_rate = 1e-5;
  options.train.num_train_epochs = 200;
  return options;
}

template <typename F>
void for_each_trained(train::Run& run, F action) {
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit)
    if (!run.shards->trained(unit).empty()) action(unit, run.shards->trained(unit).local());
}

/// Unit form: weight 0.5, gradient 1, rate 1e-5, 200 steps. In bf16 each step would be rounded away.
TEST(CaseA41, WeightsAreKeptInFp32) {
  const auto run = train::build_run(bf16_options(uneven()), world());
  std::vector<at::Tensor> gradients(run->shards->units());
  for_each_trained(*run, [&](std::size_t unit, at::Tensor weights) {
    weights.fill_(0.5);
    gradients[unit] = at::ones_like(weights);
  });
  for (int step = 0; step < 200; ++step) run->optimizer->step(gradients, 1.0f, 1e-5);
  for (const auto& [name, weight] : full_weights(*run)) {
    EXPECT_EQ(weight.scalar_type(), at::kFloat) << name;
    EXPECT_NEAR(weight.min().item<double>(), 0.49800, 1e-5) << name;
    EXPECT_NEAR(weight.max().item<double>(), 0.49800, 1e-5) << name;
  }
}

/// lora-start with every B scaled to a mean size of 0.5.
void make_large_adapter(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(case_folder() / "lora-start/adapter_config.json", folder / "adapter_config.json");
  auto tensors = read_tensors(case_folder() / "lora-start/adapter_model.safetensors");
  std::vector<io::TensorView> views;
  for (auto& [name, tensor] : tensors) {
    if (name.find("lora_B") != std::string::npos) tensor.mul_(0.5 / tensor.abs().mean().item<double>());
    views.push_back({name, Dtype::kF32, tensor.sizes().vec(), ops::bytes_of(tensor)});
  }
  io::write_safetensors(folder / "adapter_model.safetensors", views, {});
}

void expect_equal(const std::map<std::string, at::Tensor>& found, const std::map<std::string, at::Tensor>& expected,
                  const std::string& prefix) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    EXPECT_EQ(found.at(prefix + name).scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(at::equal(found.at(prefix + name), weight)) << name;
  }
}

TEST(CaseA41, SmallUpdatesReachTheExportAndTheResumedRun) {
  SharedScratch scratch;
  on_rank_0([&] {
    make_large_adapter(scratch / "start");
    std::filesystem::create_directories(scratch / "adapter");
    std::ifstream in(uneven());
    std::string line;
    for (int i = 0; i < 2; ++i) std::getline(in, line);
    std::ofstream(scratch / "row2.jsonl") << line << "\n";
  });
  options::RunOptions options = bf16_options(scratch / "row2.jsonl");
  options.adapter.adapter_name_or_path = (scratch / "start").string();
  const auto run = train::build_run(options, world());
  ASSERT_EQ(run->total_steps, 200);
  const auto start = full_weights(*run);
  std::vector<at::Tensor> before(run->shards->units());
  for_each_trained(*run, [&](std::size_t unit, const at::Tensor& weights) { before[unit] = weights.clone(); });
  run_steps(*run, 0, 200);
  for_each_trained(*run, [&](std::size_t unit, const at::Tensor& weights) {
    const at::Tensor touched = run->optimizer->state(1, unit) > 0;
    EXPECT_TRUE(at::all(at::logical_or(weights != before[unit], touched.logical_not())).item<bool>());
  });
  const auto weights = full_weights(*run);
  for (const auto& [name, weight] : weights) {
    EXPECT_GT(at::count_nonzero(weight != start.at(name)).item<std::int64_t>(), weight.numel() / 2) << name;
    // No step of Adam is larger than rate * (1 - beta1) / sqrt(1 - beta2), here 3.17 times the rate: these are small ones.
    EXPECT_LE((weight - start.at(name)).abs().max().item<double>(), 200 * 3.17e-5) << name;
    EXPECT_FALSE(at::equal(weight, weight.to(at::kBFloat16).to(at::kFloat))) << name;  // rounding would show
  }
  exporting::write_adapter(scratch / "adapter", *run->lora, "base", *run->shards, world());
  expect_equal(read_tensors(scratch / "adapter/adapter_model.safetensors"), weights, "base_model.model.");
  const auto folder = checkpoint::save(scratch.path(), {.step = 200}, *run->shards, *run->optimizer, world());
  const auto resumed = train::build_run(options, world());
  checkpoint::load(folder, {}, *resumed->shards, *resumed->optimizer, world());
  expect_equal(full_weights(*resumed), weights, "");
}

}  // namespace
}  // namespace shardtune::testing
