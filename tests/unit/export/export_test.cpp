// What PEFT wrote for the same adapter, against what this program writes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "shardtune/export/export.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using nlohmann::json;

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<train::Run> run_with(const options::RunOptions& options, comm::Communicator& communicator) {
  return train::build_run(options, communicator);
}

TEST(ExportAdapter, ReadAndWrittenBackIsPeftsFileByteForByte) {
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  options::RunOptions options = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
  options.adapter.adapter_name_or_path = (case_folder() / "lora-start").string();
  const auto run = run_with(options, *communicator);
  exporting::write_adapter(scratch.path(), *run->lora, "base-gqa", *run->shards, *communicator);
  EXPECT_EQ(file_bytes(scratch / "adapter_model.safetensors"),
            file_bytes(case_folder() / "lora-start/adapter_model.safetensors"));

  const json ours = read_json(scratch / "adapter_config.json"),
             theirs = read_json(case_folder() / "lora-start/adapter_config.json");
  for (const auto& [key, value] : ours.items()) {
    ASSERT_TRUE(theirs.contains(key)) << key;
    if (key == "target_modules") {  // a set, in no order
      auto a = value.get<std::vector<std::string>>(), b = theirs[key].get<std::vector<std::string>>();
      EXPECT_THAT(a, ::testing::UnorderedElementsAreArray(b));
    } else {
      EXPECT_EQ(value, theirs[key]) << key;
    }
  }
  for (const auto& [key, value] : theirs.items())
    if (!ours.contains(key) && key != "peft_version") {
      // Keys that only the newest PEFT knows are left out, so that older ones load the file: all at their neutral value.
      EXPECT_TRUE(value.is_null()) << key << " is " << value;
    }
}

TEST(ExportAdapter, TargetsOfSomeLayersKeepTheirFullNames) {
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  options::RunOptions options = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
  options.adapter.lora_target_modules = "model.layers.1.mlp.up_proj";
  options.adapter.use_rslora = true;
  options.adapter.lora_alpha = 12.5;
  const auto run = run_with(options, *communicator);
  exporting::write_adapter(scratch.path(), *run->lora, "base", *run->shards, *communicator);
  const json config = read_json(scratch / "adapter_config.json");
  EXPECT_EQ(config["target_modules"], json({"model.layers.1.mlp.up_proj"}));
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["lora_alpha"], 12.5);
  // The written folder is a valid start for the next run.
  options.adapter.adapter_name_or_path = scratch.path().string();
  EXPECT_EQ(run_with(options, *communicator)->lora->modules, run->lora->modules);
}

TEST(ExportModel, FullWeightsComeBackUnchanged) {
  Scratch scratch;
  const auto communicator = comm::make_self_communicator();
  options::RunOptions options = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
  options.adapter.use_peft_lora = false;
  const auto run = run_with(options, *communicator);
  exporting::write_model(scratch.path(), case_folder() / "base-gqa", at::kFloat, *run->shards, *communicator);
  exporting::write_extras(scratch.path(), case_folder() / "base-gqa", false,
                          {.base_model = "base", .dataset = "rows", .options_text = ""});
  const auto before = read_tensors(case_folder() / "base-gqa/model.safetensors"),
             after = read_tensors(scratch / "model.safetensors");
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) EXPECT_TRUE(at::equal(tensor, after.at(name))) << name;
  EXPECT_EQ(read_json(scratch / "config.json"), read_json(case_folder() / "base-gqa/config.json"));
  // The folder is a model that this program trains.
  options.model.model_name_or_path = scratch.path().string();
  EXPECT_EQ(run_steps(*run_with(options, *communicator), 0, 1).size(), 1u);
  EXPECT_THAT(file_bytes(scratch / "README.md"), ::testing::StartsWith("---\nbase_model: \"base\"\n"));
}

TEST(LoraStart, KaimingUniformOnAnyShardAndZero) {
  const auto communicator = comm::make_self_communicator();
  options::RunOptions options = plain_options(data_folder() / "models/tiny", case_folder() / "rows-uneven.jsonl");
  options.adapter.lora_r = 64;
  const auto run = run_with(options, *communicator);
  for (const auto& [name, tensor] : full_weights(*run)) {
    if (name.ends_with("lora_B.weight")) {
      EXPECT_EQ(at::count_nonzero(tensor).item<std::int64_t>(), 0) << name;
      continue;
    }
    const double bound = 1.0 / std::sqrt(static_cast<double>(tensor.size(1)));
    EXPECT_LE(at::abs(tensor).max().item<double>(), bound) << name;
    // A uniform variable in +-b has the standard deviation b / sqrt(3); n values estimate it to about b / sqrt(5 n) * 2.
    const double deviation = at::std(tensor).item<double>();
    EXPECT_NEAR(deviation, bound / std::sqrt(3.0), 4 * bound / std::sqrt(5.0 * static_cast<double>(tensor.numel())))
        << name;
  }
}

}  // namespace
}  // namespace shardtune::testing
