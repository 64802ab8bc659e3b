// Options that choose and shape an adapter, from the command line and from a file, to adapter_config.json and the tensors beside it,
// against what PEFT stores for the same settings.
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

struct Case {
  const char* name;  ///< in adapter_configs.json
  std::vector<std::pair<std::string, std::string>> options;
};

const std::pair<std::string, std::string> kAll = {"lora_target_modules", "all-linear"};

const Case kCases[] = {
    {"exclude_modules", {kAll, {"exclude_modules", "v_proj,model.layers.0.mlp.up_proj"}}},
    {"exclude_pattern", {{"lora_target_modules", "q_proj,v_proj"}, {"exclude_modules", R"(.*layers\.[13]\..*)"}}},
    {"layers_to_transform", {{"lora_target_modules", "q_proj,v_proj"}, {"layers_to_transform", "1,3"}}},
    {"layers_pattern",
     {{"lora_target_modules", "q_proj,v_proj"}, {"layers_to_transform", "0"}, {"layers_pattern", "layers"}}},
    {"rank_pattern", {kAll, {"rank_pattern", R"(q_proj=2,layers\.1\.mlp\..*=16)"}}},
    {"alpha_pattern", {kAll, {"alpha_pattern", R"({"q_proj":2,"layers.3.self_attn.v_proj":24})"}}},
    {"modules_to_save", {{"lora_target_modules", "q_proj"}, {"lora_modules_to_save", "norm,lm_head"}}},
    {"ensure_weight_tying",
     {{"lora_target_modules", "q_proj"}, {"lora_modules_to_save", "embed_tokens"}, {"ensure_weight_tying", "True"}}},
    {"bias", {{"lora_target_modules", "q_proj"}, {"lora_bias", "lora_only"}}},
    {"use_dora", {{"lora_target_modules", "q_proj,down_proj"}, {"use_dora", "True"}}},
    {"use_rslora", {{"lora_target_modules", "q_proj"}, {"use_rslora", "True"}}},
    {"init_gaussian", {{"lora_target_modules", "q_proj"}, {"init_lora_weights", "gaussian"}}},
    {"init_false", {{"lora_target_modules", "q_proj"}, {"init_lora_weights", "false"}}},
    {"embedding", {{"lora_target_modules", "embed_tokens,q_proj"}}},
};

class AdapterOptionsOf : public ::testing::TestWithParam<std::tuple<Case, bool>> {};

options::ParseResult parsed(const std::vector<std::pair<std::string, std::string>>& options, bool from_file,
                            const Scratch& scratch) {
  std::vector<std::string> arguments = {"shardtune", "train"};
  if (from_file) {
    std::ofstream file(scratch / "run.ini");
    for (const auto& [name, value] : options) file << name << " = " << value << "\n";
    arguments.insert(arguments.end(), {"--config", scratch / "run.ini"});
  } else {
    for (const auto& [name, value] : options) arguments.insert(arguments.end(), {"--" + name, value});
  }
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const char* environment[] = {nullptr};
  return options::parse_options(static_cast<int>(argv.size()), argv.data(), environment);
}

TEST_P(AdapterOptionsOf, GiveWhatPeftStores) {
  const auto& [given, from_file] = GetParam();
  const json expected = read_json(data_folder() / "adapter_configs.json")[given.name];
  const std::string model = expected["model"];
  Scratch scratch;
  write_training_rows(scratch / "rows.jsonl", model);
  auto options = given.options;
  options.insert(options.end(), {{"model_name_or_path", (data_folder() / "models" / model).string()},
                                 {"dataset_name", scratch / "rows.jsonl"},
                                 {"output_dir", scratch / "out"},
                                 {"use_peft_lora", "True"},
                                 {"lora_r", "4"},
                                 {"lora_alpha", "8"}});
  const options::ParseResult result = parsed(options, from_file, scratch);
  for (const auto& [name, value] : given.options) {
    const auto found = std::ranges::find(result.effective, name, &options::EffectiveOption::name);
    ASSERT_NE(found, result.effective.end()) << name;
    EXPECT_EQ(found->value, value);
    EXPECT_THAT(found->source, ::testing::StartsWith(from_file ? "config" : "command line")) << name;
  }
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(result.options, *communicator, options::given_names(result.effective));
  exporting::write_adapter(scratch.path(), *run->lora, "base", *run->shards, *communicator);

  json stored = read_json(scratch / "adapter_config.json");
  if (stored["target_modules"].is_array()) std::sort(stored["target_modules"].begin(), stored["target_modules"].end());
  for (const auto& [key, value] : expected["keys"].items()) {
    json wanted = value;
    // PEFT 0.21 adds the full name of what is tied to what the user said.
    if (key == "modules_to_save" && given.name == std::string("ensure_weight_tying")) wanted = {"embed_tokens"};
    EXPECT_EQ(stored[key], wanted) << key;
  }
  json tensors = json::object();
  for (const auto& [name, tensor] : read_tensors(scratch / "adapter_model.safetensors"))
    tensors[name] = tensor.sizes().vec();
  EXPECT_EQ(tensors, expected["tensors"]);
}

INSTANTIATE_TEST_SUITE_P(Cases, AdapterOptionsOf, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) +
                                  (std::get<1>(test.param) ? "_of_a_file" : "_of_the_command_line");
                         });

}  // namespace
}  // namespace shardtune::testing
