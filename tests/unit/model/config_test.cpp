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
                c["quantization_config"] = {{"load_in_4bit", true}};
              }),
              ::testing::HasSubstr("quantization_config"));
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
