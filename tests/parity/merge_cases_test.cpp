// Acceptance cases of merging; the numbers are those of the case files, which PEFT and Transformers gave.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "shardtune/export/merge.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path merge(const std::string& base, const std::string& adapter, const fs::path& output,
               const exporting::MergeRequest& more = {}) {
  exporting::MergeRequest request = more;
  request.base = case_folder() / base;
  request.adapters = case_folder() / adapter;
  request.output = output;
  exporting::merge(request, *comm::make_self_communicator());
  return output;
}

/// Mean loss of each row.
std::vector<double> row_losses(const options::RunOptions& options) {
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  std::vector<double> losses;
  for (std::size_t row = 0; row < run->train_rows.size(); ++row) {
    const auto batch = data::collate(run->train_rows, {static_cast<std::int64_t>(row)});
    losses.push_back(run->engine->evaluate(batch) / static_cast<double>(batch.target_count));
  }
  return losses;
}

/// New adapters have B = 0: the model is as it lies in the folder.
std::vector<double> row_losses(const fs::path& model) {
  return row_losses(plain_options(model, case_folder() / "rows-uneven.jsonl"));
}

void expect_row_losses(const fs::path& model, const json& expected) {
  const auto found = row_losses(model);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t row = 0; row < found.size(); ++row)
    EXPECT_NEAR(found[row], expected[row].get<double>(), 2e-4) << "row " << row;
}

void expect_first_values(const fs::path& model, const std::string& tensor, const json& expected) {
  const at::Tensor row = read_tensors(model / "model.safetensors").at(tensor)[0];
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(row[static_cast<std::int64_t>(i)].item<double>(), expected[i].get<double>(), 2e-6) << i;
}

TEST(CaseA36, ScalesOfEveryModule) {
  Scratch scratch;
  const json expected = read_json(case_folder() / "adapters-expected.json");
  for (const char* adapter : {"lora-plain", "lora-rslora", "lora-patterns"}) {
    const fs::path model = merge("base-gqa", adapter, scratch / adapter);
    expect_first_values(model, "model.layers.1.mlp.down_proj.weight",
                        expected[adapter]["merged_layer1_down_proj_row0_first8"]);
    expect_row_losses(model, expected[adapter]["merged_mean_loss_per_row"]);
  }
}

TEST(CaseA39, AdapterOnATiedHeadGivesAHeadOfItsOwn) {
  Scratch scratch;
  const json expected = read_json(case_folder() / "lora-tied-head-expected.json");
  const fs::path model = merge("base-tied", "lora-tied-head", scratch / "out");
  EXPECT_EQ(read_json(model / "config.json")["tie_word_embeddings"], false);
  EXPECT_EQ(read_json(model / "merge.json")["untied"], true);
  const auto before = read_tensors(case_folder() / "base-tied/model.safetensors"),
             after = read_tensors(model / "model.safetensors");
  EXPECT_TRUE(at::equal(after.at("model.embed_tokens.weight"), before.at("model.embed_tokens.weight")));
  EXPECT_FALSE(at::equal(after.at("lm_head.weight"), before.at("model.embed_tokens.weight")));
  expect_row_losses(model, expected["merged_right"]);
}

TEST(CaseA40, Dora) {
  Scratch scratch;
  const json expected = read_json(case_folder() / "adapters-expected.json")["lora-dora"];
  const fs::path model = merge("base-gqa", "lora-dora", scratch / "out");
  expect_first_values(model, "model.layers.1.mlp.down_proj.weight", expected["merged_layer1_down_proj_row0_first8"]);
  expect_row_losses(model, expected["merged_mean_loss_per_row"]);
}

TEST(CaseA43, DequantisedByDefaultAndTheOriginalOnRequest) {
  Scratch scratch;
  const json expected = read_json(case_folder() / "qlora-expected.json");
  exporting::MergeRequest request;
  request.quantised_by_option = true;
  request.quant.use_4bit_quantization = true;
  const fs::path trained = merge("base-gqa", "lora-plain", scratch / "trained", request);
  expect_row_losses(trained, expected["merged_onto_dequantised_base"]);
  expect_row_losses(trained, expected["nf4_base_with_lora_plain"]);
  expect_first_values(trained, "model.layers.0.mlp.down_proj.weight", expected["merged_layer0_down_proj_row0_first8"]);
  request.merge.merge_base = "original";
  const fs::path original = merge("base-gqa", "lora-plain", scratch / "original", request);
  expect_row_losses(original, expected["merged_onto_full_precision_base"]);
  EXPECT_EQ(read_json(trained / "merge.json")["merge_base"], "trained");
  EXPECT_EQ(read_json(original / "merge.json")["merge_base"], "original");
}

/// The merged model has the losses of the run it comes from, whatever its base was.
TEST(MergedModel, IsTheModelThatWasTrained) {
  quant::QuantOptions int8, fp4, nested;
  int8.use_8bit_quantization = true;
  fp4.use_4bit_quantization = nested.use_4bit_quantization = nested.use_nested_quant = true;
  fp4.bnb_4bit_quant_type = "fp4";
  nested.bnb_4bit_blocksize = 256;
  std::vector<double> before;
  for (const auto& quant : {int8, fp4, nested}) {
    Scratch scratch;
    exporting::MergeRequest request;
    request.quantised_by_option = true;
    request.quant = quant;
    const auto merged = row_losses(merge("base-gqa", "lora-plain", scratch / "out", request));
    options::RunOptions run = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
    run.quant = quant;
    run.adapter.adapter_name_or_path = (case_folder() / "lora-plain").string();
    const auto trained = row_losses(run);
    ASSERT_EQ(merged.size(), trained.size());
    for (std::size_t row = 0; row < merged.size(); ++row) EXPECT_NEAR(merged[row], trained[row], 1e-5) << "row " << row;
    EXPECT_NE(merged, before);
    before = merged;
  }
}

}  // namespace
}  // namespace shardtune::testing
