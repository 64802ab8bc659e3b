// A quantised base on all ranks of the job: curves of 20 steps against Transformers + PEFT + bitsandbytes, the packed bytes
// against those of one rank alone, the dequantised weights against the reference's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "adapters/quantised_weight.h"
#include "shardtune/comm/self.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

std::filesystem::path numerics() { return data_folder() / "numerics/tiny"; }

struct Variant {
  const char* name;
  const char* folder;  ///< of the reference
  const char* dtype;
  quant::QuantOptions quant;
  double loss_bound, norm_bound;
};

quant::QuantOptions four_bit(const char* type, bool nested) {
  return {.use_4bit_quantization = true, .bnb_4bit_quant_type = type, .use_nested_quant = nested};
}

// Bounds as the curves of the base that is not quantised.
const Variant kNf4Fp32{"nf4_fp32", "qlora_nf4_fp32", "float32", four_bit("nf4", true), 2e-5, 2e-5};
const Variant kNf4Bf16{"nf4_bf16", "qlora_nf4_bf16", "bfloat16", four_bit("nf4", true), 1e-2, 1e-2};
const Variant kInt8Fp32{"int8_fp32", "lora_int8_fp32", "float32", {.use_8bit_quantization = true}, 2e-5, 2e-5};

options::RunOptions run_options(const Variant& variant, const std::filesystem::path& rows) {
  options::RunOptions options = plain_options(data_folder() / "models/tiny", rows);
  options.model.dtype = variant.dtype;
  options.quant = variant.quant;
  return options;
}

class QuantisedCurves : public ::testing::TestWithParam<std::tuple<Variant, const char*>> {};

TEST_P(QuantisedCurves, TwentySteps) {
  const Variant& variant = std::get<0>(GetParam());
  const char* const shared = std::get<1>(GetParam());
  const auto reference = read_json(numerics() / variant.folder / "run.json");
  const auto& settings = reference["settings"];
  SharedScratch scratch;
  on_rank_0([&] {
    write_training_rows(scratch / "rows.jsonl");
    make_reference_start(scratch / "start", "tiny", variant.folder);
  });
  options::RunOptions options = run_options(variant, scratch / "rows.jsonl");
  options.fsdp.share_base_on_node = shared;
  options.adapter.adapter_name_or_path = (scratch / "start").string();
  take_settings(options, settings);
  const auto run = train::build_run(options, world());
  for (std::int64_t step = 0; step < 20; ++step) {
    const train::StepResult result = train::train_step(*run, reference_batches(*run, step), step);
    const auto& expected = reference["steps"][static_cast<std::size_t>(step)];
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), variant.loss_bound) << "step " << step + 1;
    const double norm = expected["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, variant.norm_bound * norm) << "step " << step + 1;
    EXPECT_EQ(result.targets, static_cast<std::int64_t>(expected["tokens"].get<double>())) << "step " << step + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, QuantisedCurves,
                         ::testing::Combine(::testing::Values(kNf4Fp32, kNf4Bf16, kInt8Fp32),
                                            ::testing::Values("auto", "false")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_shared_" + std::get<1>(test.param);
                         });

/// The packed weights in full, by name. Collective.
std::map<std::string, at::Tensor> packed_weights(train::Run& run) {
  std::map<std::string, at::Tensor> out;
  for (std::size_t unit = 0; unit < run.shards->units(); ++unit) {
    run.shards->unshard(unit);
    std::size_t slot = 0;
    for (const std::size_t stage : run.shards->stages_of(unit))
      for (const at::Tensor& weight : run.shards->stage(stage).weights) {
        const model::Parameter& parameter = run.shards->spec(unit).parameters[slot++];
        if (parameter.packed_bytes > 0) out[parameter.name] = weight.clone();
      }
    run.shards->reshard(unit);
  }
  return out;
}

struct Stored {
  const char* name;
  quant::QuantOptions quant;
  const char* wrap = "TRANSFORMER_BASED_WRAP";
  const char* shared = "false";
};

class QuantisedShards : public ::testing::TestWithParam<Stored> {};

TEST_P(QuantisedShards, AreThoseOfOneRankAlone) {
  const Stored stored = GetParam();
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-odd"); });
  options::RunOptions options = run_options(kNf4Fp32, scratch / "rows.jsonl");
  options.model.model_name_or_path = (data_folder() / "models/tiny-odd").string();
  options.quant = stored.quant;
  options.fsdp.auto_wrap_policy = stored.wrap;
  options.fsdp.share_base_on_node = stored.shared;
  const auto together = packed_weights(*train::build_run(options, world()));
  options.fsdp.share_base_on_node = "auto";
  const auto alone = packed_weights(*train::build_run(options, *comm::make_self_communicator()));
  EXPECT_EQ(together.size(), 21u);
  ASSERT_EQ(together.size(), alone.size());
  for (const auto& [name, bytes] : alone) EXPECT_TRUE(at::equal(together.at(name), bytes)) << name;
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QuantisedShards,
    ::testing::Values(Stored{"nf4_nested", four_bit("nf4", true)}, Stored{"nf4", four_bit("nf4", false)},
                      Stored{"fp4_nested", four_bit("fp4", true)}, Stored{"int8", {.use_8bit_quantization = true}},
                      Stored{"nf4_nested_one_unit", four_bit("nf4", true), "NO_WRAP"},
                      Stored{"nf4_nested_shared", four_bit("nf4", true), "TRANSFORMER_BASED_WRAP", "auto"},
                      Stored{"int8_shared", {.use_8bit_quantization = true}, "TRANSFORMER_BASED_WRAP", "auto"}),
    [](const auto& test) { return std::string(test.param.name); });

class DequantisedBase : public ::testing::TestWithParam<Variant> {};

TEST_P(DequantisedBase, BitsOfTheReference) {
  const Variant variant = GetParam();
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  const auto run = train::build_run(run_options(variant, scratch / "rows.jsonl"), world());
  const auto packed = packed_weights(*run);
  const auto expected = read_tensors(numerics() / variant.folder / "dequantised_base.safetensors");
  ASSERT_EQ(expected.size(), 7u);
  for (const auto& [name, dense] : expected) {
    const at::Tensor found = adapters::dequantised(packed.at(name), *run->lora->base_format, dense.size(0),
                                                   dense.size(1), dense.scalar_type());
    EXPECT_TRUE(at::equal(found, dense)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, DequantisedBase, ::testing::Values(kNf4Fp32, kNf4Bf16),
                         [](const auto& test) { return std::string(test.param.name); });

/// Models that Transformers has saved quantised, and what they were made from.
struct StoredModel {
  const char* folder;
  quant::QuantOptions quant;
};

class StoredQuantised : public ::testing::TestWithParam<StoredModel> {};

TEST_P(StoredQuantised, BytesOfTheModelThatWasQuantised) {
  const StoredModel stored = GetParam();
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = run_options(kNf4Fp32, scratch / "rows.jsonl");
  options.quant = {};
  options.fsdp.share_base_on_node = "false";
  options.model.model_name_or_path = (data_folder() / "models" / stored.folder).string();
  const auto read = packed_weights(*train::build_run(options, world()));
  options.quant = stored.quant;
  options.model.model_name_or_path = (data_folder() / "models/tiny").string();
  const auto made = packed_weights(*train::build_run(options, world()));
  EXPECT_EQ(read.size(), 28u);
  ASSERT_EQ(read.size(), made.size());
  for (const auto& [name, bytes] : made) EXPECT_TRUE(at::equal(read.at(name), bytes)) << name;
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredQuantised,
                         ::testing::Values(StoredModel{"tiny-nf4", four_bit("nf4", true)},
                                           StoredModel{"tiny-int8", {.use_8bit_quantization = true}}),
                         [](const auto& test) {
                           return std::string(test.param.folder).substr(std::string("tiny-").size());
                         });

TEST(StoredQuantised, LogitsOfTransformers) {
  const std::filesystem::path folder = data_folder() / "models/tiny-nf4";
  auto expected = read_tensors(folder / "expected.safetensors");
  SharedScratch scratch;
  on_rank_0([&] { write_rows(scratch / "rows.jsonl", expected["input_ids"], expected["input_ids"]); });
  const auto run = train::build_run(plain_options(folder, scratch / "rows.jsonl"), world());
  for (std::int64_t row = 0; row < 2; ++row) {
    const at::Tensor logits = run->engine->logits(data::collate(run->train_rows, {row}));
    EXPECT_LE(at::max(at::abs(logits - expected["logits"][row])).item<float>(), 2e-5f) << "row " << row;
  }
}

/// The curve with dropout is that of one rank alone to the last bit, and another format is another curve.
TEST(QuantisedCurve, RawBitsOfOneRankAlone) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  const auto losses = [&](const Variant& variant, comm::Communicator& communicator) {
    options::RunOptions options = run_options(variant, scratch / "rows.jsonl");
    options.adapter.lora_dropout = 0.1;
    options.train.gradient_accumulation_steps = 12 / communicator.size();
    options.train.max_steps = 4;
    options.optim.learning_rate = 5e-3;
    const auto run = train::build_run(options, communicator);
    std::vector<std::uint64_t> bits;
    for (const train::StepResult& step : run_steps(*run, 0, 4)) bits.push_back(std::bit_cast<std::uint64_t>(step.loss));
    return bits;
  };
  const auto self = comm::make_self_communicator();
  EXPECT_EQ(losses(kNf4Fp32, world()), losses(kNf4Fp32, *self));
  EXPECT_EQ(losses(kInt8Fp32, world()), losses(kInt8Fp32, *self));
  EXPECT_NE(losses(kNf4Fp32, *self), losses(kInt8Fp32, *self));
}

}  // namespace
}  // namespace shardtune::testing
