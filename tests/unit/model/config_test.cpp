// config.json in its spellings, and everything that must be refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/model/config.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

using nlohmann::json;

json small_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 520},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500.0},
          {"torch_dtype", "bfloat16"}};
}

model::ModelConfig read(const json& config) {
  Scratch scratch;
  std::ofstream(scratch / "config.json") << config.dump();
  return model::read_config(scratch.path());
}

std::string refusal(const std::function<void(json&)>& change) {
  json config = small_config();
  change(config);
  try {
    read(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadModel);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("config.json"));
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, OldSpelling) {
  json config = small_config();
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  const auto read_config = read(config);
  EXPECT_EQ(read_config.head_dim, 8);
  EXPECT_EQ(read_config.kv_heads, 2);
  EXPECT_EQ(read_config.dtype, Dtype::kBF16);
  EXPECT_EQ(read_config.rotary.theta, 500.0);
  EXPECT_EQ(read_config.rotary.type, "llama3");
  EXPECT_EQ(read_config.rotary.original_length, 64);
  EXPECT_FALSE(read_config.tied_embeddings);
}

TEST(ModelConfig, NewSpellingWins) {
  json config = small_config();
  config["dtype"] = "float32";
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  config["tie_word_embeddings"] = true;
  config["head_dim"] = 16;
  config["num_key_value_heads"] = nullptr;
  const auto read_config = read(config);
  EXPECT_EQ(read_config.dtype, Dtype::kF32);
  EXPECT_EQ(read_config.rotary.theta, 10000.0);
  EXPECT_EQ(read_config.head_dim, 16);
  EXPECT_EQ(read_config.kv_heads, 4);
  EXPECT_TRUE(read_config.tied_embeddings);
}

TEST(ModelConfig, RefusesWhatItWouldComputeOtherwise) {
  EXPECT_THAT(refusal([](json& c) { c["architectures"] = {"MistralForCausalLM"}; }),
              ::testing::HasSubstr("'MistralForCausalLM'"));
  EXPECT_THAT(refusal([](json& c) { c["model_type"] = "qwen2"; }), ::testing::HasSubstr("'qwen2'"));
  EXPECT_THAT(refusal([](json& c) { c["attention_bias"] = true; }), ::testing::HasSubstr("attention_bias"));
  EXPECT_THAT(refusal([](json& c) { c["mlp_bias"] = true; }), ::testing::HasSubstr("mlp_bias"));
  EXPECT_THAT(refusal([](json& c) { c["hidden_act"] = "gelu"; }), ::testing::HasSubstr("gelu"));
  EXPECT_THAT(refusal([](json& c) {
                c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
              }),
              ::testing::HasSubstr("'linear'"));
  EXPECT_THAT(refusal([](json& c) {
                c["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
              }),
              ::testing::HasSubstr("quantization_config: weights quantised by 'gptq' cannot be read"));
  EXPECT_THAT(
      refusal([](json& c) { c["quantization_config"] = json::object(); }),
      ::testing::HasSubstr("'load_in_4bit' and 'load_in_8bit' are both false, expected one of them to be true"));
  EXPECT_THAT(refusal([](json& c) {
                c["quantization_config"] = {{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf5"}};
              }),
              ::testing::HasSubstr("'nf5'"));
  EXPECT_THAT(refusal([](json& c) {
                c["quantization_config"] = {{"load_in_8bit", true}, {"llm_int8_skip_modules", {"up_proj"}}};
              }),
              ::testing::HasSubstr("expected none but lm_head"));
}

TEST(ModelConfig, RefusesBadNumbersWithKeyAndRange) {
  EXPECT_THAT(refusal([](json& c) { c.erase("hidden_size"); }), ::testing::HasSubstr("'hidden_size' is missing"));
  EXPECT_THAT(refusal([](json& c) { c["num_hidden_layers"] = 0; }), ::testing::HasSubstr("from 1 to 1024"));
  EXPECT_THAT(refusal([](json& c) { c["vocab_size"] = 1.5; }), ::testing::HasSubstr("expected an integer"));
  EXPECT_THAT(refusal([](json& c) { c["hidden_size"] = "32"; }), ::testing::HasSubstr("\"32\""));
  EXPECT_THAT(refusal([](json& c) { c["num_key_value_heads"] = 3; }), ::testing::HasSubstr("cannot share"));
  EXPECT_THAT(refusal([](json& c) { c["rms_norm_eps"] = 0; }), ::testing::HasSubstr("rms_norm_eps"));
  EXPECT_THAT(refusal([](json& c) { c["torch_dtype"] = "int8"; }), ::testing::HasSubstr("'int8'"));
}

TEST(ModelConfig, RefusesNumbersThatNoLlamaHas) {
  for (const json& value : {json(1e300), json(1e-300), json(1e-50), json(-1e-5), json(2), json("1e-5")})
    EXPECT_THAT(refusal([&](json& c) { c["rms_norm_eps"] = value; }),
                ::testing::HasSubstr("'rms_norm_eps' is " + value.dump() + ", expected a number from 1e-12 to 1"));
  for (const json& value : {json(1e300), json(1e-300), json(0), json(0.5), json(-10000)}) {
    EXPECT_THAT(refusal([&](json& c) { c["rope_theta"] = value; }),
                ::testing::HasSubstr("'rope_theta' is " + value.dump() + ", expected a number from 1 to"));
    EXPECT_THAT(refusal([&](json& c) {
                  c["rope_parameters"] = {{"rope_theta", value}};
                }),
                ::testing::HasSubstr("rope_parameters: 'rope_theta' is " + value.dump()));
  }
  for (const double epsilon : {1e-5, 1e-6, 1e-8})
    EXPECT_EQ(refusal([&](json& c) { c["rms_norm_eps"] = epsilon; }), "no error");
  for (const double theta : {10000.0, 5e5, 5e6, 1e8})
    EXPECT_EQ(refusal([&](json& c) { c["rope_theta"] = theta; }), "no error");
}

TEST(ModelConfig, RefusesFactorsThatNoLlamaHas) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const auto with = [&](const char* key, const json& value) {
    return refusal([&](json& c) {
      c["rope_scaling"] = llama3;
      c["rope_scaling"][key] = value;
    });
  };
  EXPECT_EQ(with("factor", 32.0), "no error");
  for (const json& value : {json(0.5), json(1e300), json(0)})
    EXPECT_THAT(with("factor", value), ::testing::HasSubstr("'factor' is " + value.dump()));
  EXPECT_THAT(with("low_freq_factor", 1e-300), ::testing::HasSubstr("'low_freq_factor' is 1e-300"));
  EXPECT_THAT(with("high_freq_factor", 1e300), ::testing::HasSubstr("'high_freq_factor' is 1e+300"));
  EXPECT_THAT(with("partial_rotary_factor", 0.5), ::testing::HasSubstr("'partial_rotary_factor' is 0.5, expected 1"));
  EXPECT_EQ(with("partial_rotary_factor", 1.0), "no error");
}

TEST(ModelConfig, AttentionAsTransformersWouldRunIt) {
  for (const json& value : {json(0.1), json(1e-9), json(-0.1), json("0"), json(false)})
    EXPECT_THAT(refusal([&](json& c) { c["attention_dropout"] = value; }),
                ::testing::HasSubstr("'attention_dropout' is " + value.dump() + ", expected 0"));
  for (const json& value : {json(0), json(0.0), json()})
    EXPECT_EQ(refusal([&](json& c) { c["attention_dropout"] = value; }), "no error");
  EXPECT_THAT(refusal([](json& c) { c["is_causal"] = false; }), ::testing::HasSubstr("'is_causal' is false"));
  // What LlamaForCausalLM does not read.
  EXPECT_EQ(refusal([](json& c) {
              c["pretraining_tp"] = 2;
              c["sliding_window"] = 4096;
              c["num_local_experts"] = 8;
              c["attn_logit_softcapping"] = 30.0;
            }),
            "no error");
}

TEST(ModelConfig, MissingFolderNamesTheOption) {
  try {
    model::read_config("/no/such/folder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("/no/such/folder"),
                                               ::testing::HasSubstr("--model_name_or_path")));
  }
}

}  // namespace
}  // namespace shardtune::testing
