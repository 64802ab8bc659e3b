// Kinds of adapters on all ranks of the job: curves of 20 steps, gradients of the first and weights after the last against
// PEFT, and the raw bits against those of one rank alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

const quant::QuantOptions kNf4{.use_4bit_quantization = true, .use_nested_quant = true};
const quant::QuantOptions kInt8{.use_8bit_quantization = true};

struct Variant {
  const char *model, *folder;  ///< of the reference
  quant::QuantOptions quant{};
};

std::filesystem::path reference(const Variant& variant) {
  return data_folder() / "numerics" / variant.model / variant.folder;
}

/// The run's name for a tensor of PEFT's files; in files of gradients magnitudes are called as PyTorch does.
std::string own_name(std::string name) {
  name = name.substr(std::string("base_model.model.").size());
  if (name.ends_with("lora_magnitude_vector.weight")) name.resize(name.size() - std::string(".weight").size());
  return name;
}

/// Every tensor of `file`, when the reference has it, is one of `found`, within `bound` (relative L2).
void expect_tensors(const std::map<std::string, at::Tensor>& found, const std::filesystem::path& file, double bound) {
  if (!std::filesystem::exists(file)) return;
  const auto expected = read_tensors(file);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(own_name(name))) << name;
    EXPECT_LE(relative_l2(found.at(own_name(name)), tensor), bound) << name;
  }
}

class AdapterCurves : public ::testing::TestWithParam<Variant> {};

TEST_P(AdapterCurves, TwentySteps) {
  const Variant variant = GetParam();
  const auto run_json = read_json(reference(variant) / "run.json");
  SharedScratch scratch;
  on_rank_0([&] {
    write_training_rows(scratch / "rows.jsonl", variant.model);
    make_reference_start(scratch / "start", variant.model, variant.folder);
  });
  options::RunOptions options = plain_options(data_folder() / "models" / variant.model, scratch / "rows.jsonl");
  options.quant = variant.quant;
  options.adapter.adapter_name_or_path = (scratch / "start").string();
  take_settings(options, run_json["settings"]);
  const auto run = train::build_run(options, world());
  for (std::int64_t step = 0; step < 20; ++step) {
    const train::StepResult result = train::train_step(*run, reference_batches(*run, step), step);
    if (step == 0) expect_tensors(full_gradients(*run), reference(variant) / "grads_step1.safetensors", 1e-5);
    const auto& expected = run_json["steps"][static_cast<std::size_t>(step)];
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-5) << "step " << step + 1;
    const double norm = expected["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, 2e-5 * norm) << "step " << step + 1;
  }
  expect_tensors(full_weights(*run), reference(variant) / "trained.safetensors", 5e-4);
}

INSTANTIATE_TEST_SUITE_P(Reference, AdapterCurves,
                         ::testing::Values(Variant{"tiny", "rslora"}, Variant{"tiny", "dora"},
                                           Variant{"tiny-llama3", "dora"}, Variant{"tiny-odd", "dora"},
                                           Variant{"tiny", "qdora_nf4_fp32", kNf4}),
                         [](const auto& test) {
                           std::string name = std::string(test.param.model) + "_" + test.param.folder;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// Kinds of adapters over a base in bf16 or in 8 bits, from the folder that PEFT's run began with.
struct OverABase {
  const char* folder;
  const char* dtype;
  quant::QuantOptions quant;
  double bound;  ///< of the loss, and of the gradient norm relative to it
  std::int64_t table_pieces = 0;
};

class AdapterOverABase : public ::testing::TestWithParam<OverABase> {};

TEST_P(AdapterOverABase, TwentySteps) {
  const OverABase& over = GetParam();
  const auto folder = data_folder() / "numerics/tiny" / over.folder;
  SharedScratch scratch;
  on_rank_0([&] {
    write_training_rows(scratch / "rows.jsonl");
    if (!std::filesystem::exists(folder / "start")) make_reference_start(scratch / "start", "tiny", over.folder);
  });
  options::RunOptions options = plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl");
  options.model.dtype = over.dtype;
  options.model.table_pieces = over.table_pieces;
  options.quant = over.quant;
  const auto start = std::filesystem::exists(folder / "start") ? folder / "start" : scratch / "start";
  options.adapter.adapter_name_or_path = start.string();
  const auto reference = read_json(folder / "run.json");
  take_settings(options, reference["settings"]);
  const auto run = train::build_run(options, world());
  EXPECT_EQ(run->model->head_stages().size(), static_cast<std::size_t>(over.table_pieces));
  for (std::size_t step = 0; step < 20; ++step) {
    const auto number = static_cast<std::int64_t>(step);
    const train::StepResult result = train::train_step(*run, reference_batches(*run, number), number);
    EXPECT_NEAR(result.loss, reference["steps"][step]["loss"].get<double>(), over.bound) << "step " << step + 1;
    const double norm = reference["steps"][step]["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, over.bound * norm) << "step " << step + 1;
  }
}

// bf16: PEFT rounds the norms and what B A x gives to bf16 as well, where this program keeps fp32; the bound is that of lora_bf16.
INSTANTIATE_TEST_SUITE_P(Reference, AdapterOverABase,
                         ::testing::Values(OverABase{"dora_int8_fp32", "float32", kInt8, 2e-5},
                                           OverABase{"dora_bf16", "bfloat16", {}, 1e-2},
                                           OverABase{"saved_bf16", "bfloat16", {}, 1e-2},
                                           OverABase{"lora_bf16", "bfloat16", {}, 1e-2, 3}),
                         [](const auto& test) { return std::string(test.param.folder); });

/// New magnitudes are the norms of the rows of the base, quantised or not, as PEFT has them.
TEST(DoraStart, MagnitudesOfPeft) {
  for (const Variant& variant :
       {Variant{"tiny", "dora"}, Variant{"tiny-odd", "dora"}, Variant{"tiny", "qdora_nf4_fp32", kNf4}}) {
    SharedScratch scratch;
    on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", variant.model); });
    options::RunOptions options = plain_options(data_folder() / "models" / variant.model, scratch / "rows.jsonl");
    options.quant = variant.quant;
    options.adapter.use_dora = true;
    const auto run = train::build_run(options, world());
    const auto found = full_weights(*run);
    for (const auto& [name, magnitude] : read_tensors(reference(variant) / "magnitudes.safetensors"))
      EXPECT_LE(relative_l2(found.at(own_name(name)), magnitude), 2e-7) << name;
  }
}

/// With dropout, on a base of each kind: the raw losses and weights of one rank alone.
TEST(DoraCurve, RawBitsOfOneRankAlone) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  const auto self = comm::make_self_communicator();
  const auto bits = [&](const quant::QuantOptions& quant, comm::Communicator& communicator) {
    options::RunOptions options = plain_options(data_folder() / "models/tiny-odd", scratch / "rows.jsonl");
    options.quant = quant;
    options.adapter.use_dora = true;
    options.adapter.lora_dropout = 0.1;
    options.train.gradient_accumulation_steps = 12 / communicator.size();
    options.train.max_steps = 4;
    options.optim.learning_rate = 5e-3;
    const auto run = train::build_run(options, communicator);
    std::vector<std::uint64_t> losses;
    for (const train::StepResult& step : run_steps(*run, 0, 4))
      losses.push_back(std::bit_cast<std::uint64_t>(step.loss));
    return std::pair(losses, weights_hash(*run));
  };
  for (const quant::QuantOptions& quant : {quant::QuantOptions{}, kNf4, kInt8})
    EXPECT_EQ(bits(quant, world()), bits(quant, *self));
}

}  // namespace
}  // namespace shardtune::testing
