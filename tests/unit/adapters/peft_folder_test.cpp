// Settings of an adapter, from options and from a PEFT folder; kinds that are not computed are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "shardtune/adapters/peft_folder.h"
#include "shardtune/core/error.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

using nlohmann::json;

model::ModelConfig config() { return model::read_config(case_folder() / "base-gqa"); }

adapters::LoraConfig from_folder(const std::function<void(json&)>& change) {
  std::ifstream in(case_folder() / "lora-start/adapter_config.json");
  json settings = json::parse(in);
  change(settings);
  Scratch scratch;
  std::ofstream(scratch / "adapter_config.json") << settings.dump();
  adapters::AdapterOptions options;
  options.use_peft_lora = true;
  options.lora_dropout = 0.25;
  options.adapter_name_or_path = scratch.path().string();
  return adapters::make_lora_config(options, config());
}

std::string refusal(const std::function<void(json&)>& change) {
  try {
    from_folder(change);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadModel);
    return error.what();
  }
  return "no error";
}

TEST(LoraConfig, Scaling) {
  adapters::LoraConfig lora{.rank = 16, .alpha = 8, .dropout = 0, .rank_stabilised = false, .modules = {}};
  EXPECT_DOUBLE_EQ(lora.scaling(), 0.5);
  lora.rank_stabilised = true;
  EXPECT_DOUBLE_EQ(lora.scaling(), 2.0);
}

TEST(LoraConfig, FromAFolder) {
  const auto lora = from_folder([](json&) {});
  EXPECT_EQ(lora.rank, 4);
  EXPECT_EQ(lora.alpha, 8);
  EXPECT_EQ(lora.dropout, 0.25);
  EXPECT_EQ(lora.modules.size(), 14u);
  EXPECT_EQ(from_folder([](json& c) { c["target_modules"] = "all-linear"; }).modules, lora.modules);
  EXPECT_EQ(from_folder([](json& c) { c["target_modules"] = R"(.*layers\.1\..*_proj)"; }).modules.size(), 7u);
}

TEST(LoraConfig, KindsThatAreNotComputedAreRefused) {
  EXPECT_THAT(refusal([](json& c) { c["use_dora"] = true; }), ::testing::HasSubstr("'use_dora'"));
  EXPECT_THAT(refusal([](json& c) { c["bias"] = "all"; }), ::testing::HasSubstr("'bias'"));
  EXPECT_THAT(refusal([](json& c) { c["rank_pattern"] = {{"q_proj", 2}}; }), ::testing::HasSubstr("'rank_pattern'"));
  EXPECT_THAT(refusal([](json& c) { c["alpha_pattern"] = {{"q_proj", 2}}; }), ::testing::HasSubstr("'alpha_pattern'"));
  EXPECT_THAT(refusal([](json& c) { c["modules_to_save"] = {"lm_head"}; }), ::testing::HasSubstr("'modules_to_save'"));
  EXPECT_THAT(refusal([](json& c) { c["layers_to_transform"] = {1}; }), ::testing::HasSubstr("'layers_to_transform'"));
  EXPECT_THAT(refusal([](json& c) { c["peft_type"] = "LOHA"; }), ::testing::HasSubstr("peft_type"));
  EXPECT_THAT(refusal([](json& c) { c["r"] = 0; }), ::testing::HasSubstr("'r'"));
  EXPECT_THAT(refusal([](json& c) { c.erase("target_modules"); }), ::testing::HasSubstr("target_modules"));
}

TEST(LoraConfig, NamesInPeftsFiles) {
  EXPECT_EQ(adapters::peft_name("model.layers.0.mlp.up_proj.lora_A.weight"),
            "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight");
}

}  // namespace
}  // namespace shardtune::testing
