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
  EXPECT_THAT(refusal([](json& c) { c["fan_in_fan_out"] = true; }), ::testing::HasSubstr("'fan_in_fan_out'"));
  EXPECT_THAT(refusal([](json& c) { c["bias"] = "some"; }), ::testing::HasSubstr("'bias'"));
  EXPECT_THAT(refusal([](json& c) { c["modules_to_save"] = {"lm_haed"}; }),
              ::testing::HasSubstr("'modules_to_save': 'lm_haed' is no module with a weight"));
  EXPECT_THAT(refusal([](json& c) { c["ensure_weight_tying"] = true; }), ::testing::HasSubstr("weight of its own"));
  EXPECT_THAT(refusal([](json& c) { c["peft_type"] = "LOHA"; }), ::testing::HasSubstr("peft_type"));
  EXPECT_THAT(refusal([](json& c) { c["r"] = 0; }), ::testing::HasSubstr("'r'"));
  EXPECT_THAT(refusal([](json& c) { c.erase("target_modules"); }), ::testing::HasSubstr("target_modules"));
}

TEST(LoraConfig, PatternsThatAreNone) {
  for (const char* key : {"rank_pattern", "alpha_pattern"})
    for (const json& wrong : {json::array({"q_proj"}), json("q_proj"), json{{"q_proj", "4"}}, json{{"q_proj", 0}}})
      EXPECT_THAT(refusal([&](json& c) { c[key] = wrong; }), ::testing::HasSubstr(fmt::format("'{}'", key))) << wrong;
  for (const char* key : {"rank_pattern", "alpha_pattern", "layers_pattern", "layers_to_transform", "exclude_modules"})
    for (const json& nothing : {json(), json::array()})
      EXPECT_EQ(refusal([&](json& c) { c[key] = nothing; }), "no error") << key << " " << nothing;
}

TEST(LoraConfig, PatternsOfAFolder) {
  const auto lora = from_folder([](json& c) {
    c["rank_pattern"] = {{"q_proj", 2}, {R"(layers\.1\.mlp\..*)", 16}};
    c["alpha_pattern"] = {{"model.layers.0.self_attn.q_proj", 3.5}};
  });
  EXPECT_EQ(lora.rank_of("model.layers.0.self_attn.q_proj"), 2);
  EXPECT_EQ(lora.rank_of("model.layers.1.mlp.up_proj"), 16);
  EXPECT_EQ(lora.rank_of("model.layers.0.mlp.up_proj"), 4);
  EXPECT_EQ(lora.scaling_of("model.layers.0.self_attn.q_proj"), 3.5 / 2);
  EXPECT_EQ(lora.scaling_of("model.layers.1.self_attn.q_proj"), 8.0 / 2);
  EXPECT_EQ(lora.scaling_of("model.layers.1.mlp.up_proj"), 8.0 / 16);
  EXPECT_EQ(lora.scaling_of("model.layers.0.mlp.up_proj"), 8.0 / 4);
}

/// PEFT takes the first key of the file that matches; as JSON objects are sorted by many readers, the order is easily lost.
TEST(LoraConfig, FirstPatternInTheFileCounts) {
  std::ifstream in(case_folder() / "lora-start/adapter_config.json");
  auto settings = nlohmann::ordered_json::parse(in);
  settings["rank_pattern"] = nlohmann::ordered_json::parse(R"({"q_proj": 2, "model.layers.0.self_attn.q_proj": 16})");
  Scratch scratch;
  std::ofstream(scratch / "adapter_config.json") << settings.dump();
  const auto lora = adapters::read_lora_config(scratch.path(), config());
  EXPECT_EQ(lora.rank_of("model.layers.0.self_attn.q_proj"), 2);
  EXPECT_EQ(lora.rank_pattern,
            (adapters::Pattern<std::int64_t>{{"q_proj", 2}, {"model.layers.0.self_attn.q_proj", 16}}));
}

TEST(LoraConfig, SelectionOfAFolder) {
  const auto lora = from_folder([](json& c) {
    c["exclude_modules"] = {"q_proj"};
    c["layers_to_transform"] = {1};
    c["layers_pattern"] = "layers";
  });
  EXPECT_EQ(lora.modules.size(), 6u);
  EXPECT_TRUE(lora.modules.contains("model.layers.1.self_attn.k_proj"));
  EXPECT_EQ(from_folder([](json& c) { c["layers_to_transform"] = 0; }).modules.size(), 7u);
  EXPECT_EQ(from_folder([](json& c) { c["exclude_modules"] = R"(.*layers\.0\..*)"; }).modules.size(), 7u);
  EXPECT_THAT(refusal([](json& c) { c["layers_to_transform"] = {2}; }),
              ::testing::HasSubstr("'layers_to_transform': there is no layer 2"));
  EXPECT_THAT(refusal([](json& c) { c["layers_pattern"] = {"layers"}; }), ::testing::HasSubstr("'layers_pattern'"));
  EXPECT_THAT(refusal([](json& c) { c["exclude_modules"] = {"qproj"}; }), ::testing::HasSubstr("'exclude_modules'"));
  EXPECT_THAT(refusal([](json& c) { c["modules_to_save"] = {"score"}; }), ::testing::HasSubstr("'modules_to_save'"));
}

TEST(LoraConfig, FurtherKindsAreRefused) {
  for (const char* key :
       {"alora_invocation_tokens", "velora_config", "monteclora_config", "kasa_config", "use_bdlora", "arrow_config"})
    EXPECT_THAT(refusal([&](json& c) { c[key] = {{"x", 1}}; }), ::testing::HasSubstr(fmt::format("'{}'", key)));
}

/// A later PEFT may add keys: at values that Python takes for false nothing is switched on.
TEST(LoraConfig, KeysThatNobodyKnowsAreRefused) {
  for (const json& value : {json(1), json("x"), json(true), json({{"a", 1}})})
    EXPECT_THAT(refusal([&](json& c) { c["use_next"] = value; }),
                ::testing::HasSubstr("adapter_config.json: 'use_next' is " + value.dump()));
  for (const json& value : {json(), json(false), json(0), json(""), json::array(), json::object()})
    EXPECT_EQ(refusal([&](json& c) { c["use_next"] = value; }), "no error") << value;
  EXPECT_THAT(refusal([](json& c) { c["task_type"] = "SEQ_CLS"; }),
              ::testing::HasSubstr("'task_type' is \"SEQ_CLS\"; expected CAUSAL_LM"));
  EXPECT_EQ(refusal([](json& c) { c["task_type"] = nullptr; }), "no error");
}

/// PEFT 0.21, check_target_module_exists(): layers filter what a suffix finds, and not a full name.
TEST(LoraConfig, FullNamesAreTakenInEveryLayer) {
  const auto lora = from_folder([](json& c) {
    c["target_modules"] = {"lm_head", "q_proj", "model.layers.1.mlp.up_proj"};
    c["layers_to_transform"] = {0};
  });
  EXPECT_EQ(lora.modules,
            (std::set<std::string>{"lm_head", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"}));
}

TEST(LoraConfig, SavedModulesLeaveATarget) {
  EXPECT_THAT(refusal([](json& c) {
                c["target_modules"] = {"q_proj"};
                c["modules_to_save"] = {"self_attn"};
              }),
              ::testing::HasSubstr("'modules_to_save' takes every module of 'target_modules'"));
}

TEST(LoraConfig, AdaptersOnTiedCopiesCannotBeOne) {
  const auto tied = model::read_config(case_folder() / "base-tied");
  for (const char* module : {"embed_tokens", "lm_head"}) {
    adapters::AdapterOptions options;
    options.lora_target_modules = fmt::format("q_proj,{}", module);
    EXPECT_EQ(adapters::make_lora_config(options, tied).modules.size(), 3u);
    options.ensure_weight_tying = true;
    EXPECT_THAT([&] { adapters::make_lora_config(options, tied); },
                ::testing::ThrowsMessage<Error>(::testing::AllOf(
                    ::testing::HasSubstr("--ensure_weight_tying: an adapter"), ::testing::HasSubstr(module))));
  }
}

TEST(LoraConfig, StartsThatChangeTheBaseAreRefused) {
  for (const json& kind : {json("pissa"), json("pissa_niter_16"), json("olora"), json("corda"), json("loftq"),
                           json("lora_ga"), json("mica"), json("new"), json(1)})
    EXPECT_THAT(refusal([&](json& c) { c["init_lora_weights"] = kind; }),
                ::testing::AllOf(::testing::HasSubstr("adapter_config.json: 'init_lora_weights' is " + kind.dump())));
  for (const json& kind : {json(true), json(false), json(), json("gaussian"), json("eva"), json("orthogonal")})
    EXPECT_EQ(refusal([&](json& c) { c["init_lora_weights"] = kind; }), "no error") << kind;
}

TEST(LoraConfig, AlphaOfAFolder) {
  for (const json& alpha : {json(0), json(-8), json(-0.5), json("8"), json()})
    EXPECT_THAT(refusal([&](json& c) { c["lora_alpha"] = alpha; }),
                ::testing::AllOf(::testing::HasSubstr("adapter_config.json: 'lora_alpha' is " + alpha.dump()),
                                 ::testing::HasSubstr("above 0")));
  EXPECT_THAT(refusal([](json& c) { c.erase("lora_alpha"); }), ::testing::HasSubstr("'lora_alpha' is null"));
  EXPECT_THAT(refusal([](json& c) { c["lora_alpha"] = 1e300; }),
              ::testing::AllOf(::testing::HasSubstr("adapter_config.json: 'lora_alpha' 1e+300 with rank 4"),
                               ::testing::HasSubstr("scale 2.5e+299")));
  EXPECT_THAT(refusal([](json& c) { c["lora_alpha"] = 1e-300; }), ::testing::HasSubstr("scale 2.5e-301"));
}

std::string option_refusal(double alpha, double dropout, std::int64_t rank = 8) {
  adapters::AdapterOptions options;
  options.lora_r = rank;
  options.lora_alpha = alpha;
  options.lora_dropout = dropout;
  try {
    adapters::make_lora_config(options, config());
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    return error.what();
  }
  return "no error";
}

// Largest fp32: (2 - 2^-23) * 2^127; smallest normal one: 2^-126. A rank of 1 makes the scale alpha itself.
TEST(LoraConfig, ScaleFitsIntoFp32) {
  EXPECT_THAT(option_refusal(1e300, 0), ::testing::HasSubstr("--lora_alpha 1e+300 with rank 8"));
  EXPECT_EQ(option_refusal(0x1.fffffep127, 0, 1), "no error");
  EXPECT_THAT(option_refusal(0x1p128, 0, 1), ::testing::HasSubstr("--lora_alpha"));
  EXPECT_EQ(option_refusal(0x1p-126, 0, 1), "no error");
  EXPECT_THAT(option_refusal(0x1p-127, 0, 1), ::testing::HasSubstr("--lora_alpha"));
}

TEST(LoraConfig, ScalesOfAPatternNameIt) {
  EXPECT_THAT(refusal([](json& c) {
                c["alpha_pattern"] = {{"q_proj", 1e40}};
              }),
              ::testing::HasSubstr("adapter_config.json: 'alpha_pattern' 1e+40 with rank 4"));
  adapters::AdapterOptions options;
  const auto refused = [&](const std::string& wanted) {
    EXPECT_THAT([&] { adapters::make_lora_config(options, config()); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr(wanted)));
  };
  options.alpha_pattern = "q_proj=1e300";
  refused("--alpha_pattern 1e+300 with rank 8");
  options.alpha_pattern = "";
  options.rank_pattern = "q_proj=2,q_proj=3";
  refused("--rank_pattern: 'q_proj' is given twice");
  options.rank_pattern = "(=2";
  refused("'(' ");
}

TEST(LoraConfig, DropoutThatKeepsNothingIsRefused) {
  EXPECT_EQ(option_refusal(16, 0.99999999), "no error");
  EXPECT_EQ(option_refusal(16, 1 - 0x1p-32), "no error");
  EXPECT_THAT(option_refusal(16, 1 - 0x1p-33), ::testing::HasSubstr("--lora_dropout"));
  EXPECT_THAT(option_refusal(16, -0.5), ::testing::HasSubstr("--lora_dropout"));
}

TEST(LoraConfig, NamesInPeftsFiles) {
  EXPECT_EQ(adapters::peft_name("model.layers.0.mlp.up_proj.lora_A.weight"),
            "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight");
}

}  // namespace
}  // namespace shardtune::testing
