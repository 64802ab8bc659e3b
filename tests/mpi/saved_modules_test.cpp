// Adapters that train more than linears of the layers: modules_to_save, the embedding, a tied head, single tokens. Curves
// against PEFT at every number of ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/export/export.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/model/weights.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

struct Reference {
  const char* model;
  const char* name;
  std::int64_t steps;
};

std::filesystem::path folder_of(const Reference& reference) {
  return data_folder() / "numerics" / reference.model / reference.name;
}

/// The folder that the run starts from. The Trainer's runs hold their start under PEFT's names in memory.
std::filesystem::path start_folder(const Reference& reference, SharedScratch& scratch) {
  const std::filesystem::path folder = folder_of(reference);
  if (std::filesystem::exists(folder / "start")) return folder / "start";
  on_rank_0([&] {
    std::filesystem::create_directories(scratch / "start");
    std::map<std::string, at::Tensor> tensors = read_tensors(folder / "start.safetensors");
    std::vector<io::TensorView> views;
    for (const auto& [name, tensor] : tensors) {
      std::string file_name = name;
      if (const auto at = file_name.find(".modules_to_save"); at != std::string::npos) file_name.erase(at, 16);
      views.push_back({file_name, Dtype::kF32, tensor.sizes().vec(), ops::bytes_of(tensor)});
    }
    io::write_safetensors(scratch / "start/adapter_model.safetensors", views, {{"format", "pt"}});
    std::filesystem::copy_file(folder / "adapter/adapter_config.json", scratch / "start/adapter_config.json");
  });
  return scratch / "start";
}

options::RunOptions run_options(const Reference& reference, SharedScratch& scratch) {
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", reference.model); });
  options::RunOptions options = plain_options(data_folder() / "models" / reference.model, scratch / "rows.jsonl");
  options.adapter.adapter_name_or_path = start_folder(reference, scratch).string();
  take_settings(options, read_json(folder_of(reference) / "run.json")["settings"]);
  options.train.max_steps = reference.steps;
  return options;
}

class SavedModules : public ::testing::TestWithParam<Reference> {};

TEST_P(SavedModules, CurveIsThatOfPeft) {
  const Reference reference = GetParam();
  SharedScratch scratch;
  const auto expected = read_json(folder_of(reference) / "run.json")["steps"];
  const auto run = train::build_run(run_options(reference, scratch), world());
  for (std::int64_t step = 0; step < reference.steps; ++step) {
    const train::StepResult result = train::train_step(*run, reference_batches(*run, step), step);
    const auto& wanted = expected[static_cast<std::size_t>(step)];
    EXPECT_NEAR(result.loss, wanted["loss"].get<double>(), 2e-5) << "step " << step + 1;
    const double norm = wanted["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, 2e-5 * norm) << "step " << step + 1;
    if (step > 0 || !std::filesystem::exists(folder_of(reference) / "grads_step1.safetensors")) continue;
    const auto gradients = full_gradients(*run);
    for (const auto& [name, gradient] : read_tensors(folder_of(reference) / "grads_step1.safetensors")) {
      std::string own = name.substr(17);
      if (const auto at = own.find(".modules_to_save"); at != std::string::npos) own.erase(at, 16);
      EXPECT_LE(relative_l2(gradients.at(own), gradient), 1e-5) << own;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, SavedModules,
                         ::testing::Values(Reference{"tiny", "lora_modules_to_save", 20},
                                           Reference{"tiny-llama3", "lora_modules_to_save", 20},
                                           Reference{"tiny-llama3", "saved_embed", 8},
                                           Reference{"tiny-llama3", "saved_tied", 8},
                                           Reference{"tiny", "saved_norm_down", 8}, Reference{"tiny", "embed_lora", 8},
                                           Reference{"tiny", "tokens", 20}, Reference{"tiny", "tokens_both", 20},
                                           Reference{"tiny-llama3", "tokens_tied", 20},
                                           Reference{"tiny-llama3", "embed_head_lora", 8}),
                         [](const auto& test) {
                           std::string name = std::string(test.param.model) + "_" + test.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(SavedModules, TrainedFolderGivesItsLogits) {
  const auto folder = data_folder() / "numerics/tiny-llama3/lora_modules_to_save";
  auto expected = read_tensors(folder / "logits.safetensors");
  SharedScratch scratch;
  on_rank_0([&] { write_rows(scratch / "rows.jsonl", expected["input_ids"], expected["input_ids"]); });
  options::RunOptions options = plain_options(data_folder() / "models/tiny-llama3", scratch / "rows.jsonl");
  options.adapter.adapter_name_or_path = (folder / "adapter").string();
  const auto run = train::build_run(options, world());
  const at::Tensor logits = run->engine->logits(data::collate(run->train_rows, {0}));
  EXPECT_LE(relative_l2(logits, expected["logits"][0]), 1e-5);
}

/// Case A39: an adapter on the head of a tied model leaves the embedding as it is.
TEST(CaseA39, LossesWithTheAdapter) {
  const auto expected = read_json(case_folder() / "lora-tied-head-expected.json");
  options::RunOptions options = plain_options(case_folder() / "base-tied", case_folder() / "rows-uneven.jsonl");
  options.adapter.adapter_name_or_path = (case_folder() / "lora-tied-head").string();
  const auto run = train::build_run(options, world());
  const auto& losses = expected["with_adapter"]["mean_loss_per_row"];
  ASSERT_EQ(run->train_rows.size(), losses.size());
  for (std::size_t row = 0; row < losses.size(); ++row) {
    const data::MicroBatch batch = data::collate(run->train_rows, {static_cast<std::int64_t>(row)});
    const double loss = run->engine->evaluate(batch) / static_cast<double>(batch.target_count);
    EXPECT_NEAR(loss, losses[row].get<double>(), 2e-4) << "row " << row;
  }
}

options::RunOptions new_adapter(const SharedScratch& scratch, const char* model) {
  options::RunOptions options = plain_options(data_folder() / "models" / model, scratch / "rows.jsonl");
  options.adapter.use_peft_lora = true;
  options.adapter.lora_r = 2;
  options.adapter.lora_target_modules = "v_proj,embed_tokens,lm_head";
  options.train.max_steps = 2;
  options.optim.learning_rate = 1e-2;
  return options;
}

at::Tensor logits_of(train::Run& run) { return run.engine->logits(data::collate(run.train_rows, {0})); }

/// Trains two steps, writes the adapter, and gives the tensors of the file; the folder must give the same logits when it is
/// loaded back.
std::map<std::string, at::Tensor> trained_folder(options::RunOptions options, const SharedScratch& scratch) {
  const auto run = train::build_run(options, world());
  run_steps(*run, 0, 2);
  on_rank_0([&] { std::filesystem::create_directories(scratch / "adapter"); });
  exporting::write_adapter(scratch / "adapter", *run->lora, "base", *run->shards, world());
  options.adapter.adapter_name_or_path = (scratch / "adapter").string();
  const auto again = train::build_run(options, world());
  EXPECT_TRUE(at::equal(logits_of(*again), logits_of(*run)));
  return read_tensors(scratch / "adapter/adapter_model.safetensors");
}

TEST(SavedModules, FolderHasPeftsNamesAndComesBack) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = new_adapter(scratch, "tiny");
  options.adapter.lora_modules_to_save = "norm,k_proj";
  const auto tensors = trained_folder(options, scratch);
  // 4 layers: A and B of v, the whole of k and two norms each; the last norm; A and B of embedding and head.
  EXPECT_EQ(tensors.size(), 4u * (2 + 1 + 2) + 1 + 4);
  const std::string model = "base_model.model.model.";
  EXPECT_EQ(tensors.at(model + "embed_tokens.lora_embedding_A").sizes().vec(), (std::vector<std::int64_t>{2, 512}));
  EXPECT_EQ(tensors.at(model + "embed_tokens.lora_embedding_B").sizes().vec(), (std::vector<std::int64_t>{64, 2}));
  EXPECT_TRUE(tensors.contains("base_model.model.lm_head.lora_A.weight"));
  EXPECT_TRUE(tensors.contains(model + "norm.weight"));
  EXPECT_TRUE(tensors.contains(model + "layers.3.self_attn.k_proj.weight"));
}

TEST(SavedModules, TiedCopyIsWrittenUnderBothNames) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = new_adapter(scratch, "tiny-llama3");
  options.adapter.lora_target_modules = "v_proj";
  options.adapter.lora_modules_to_save = "lm_head";
  options.adapter.ensure_weight_tying = true;
  const auto tensors = trained_folder(options, scratch);
  EXPECT_TRUE(at::equal(tensors.at("base_model.model.lm_head.weight"),
                        tensors.at("base_model.model.model.embed_tokens.weight")));
}

/// Case A24 for what is trained beside LoRA's factors: the state belongs to names, whatever the order in which they are given.
TEST(CaseA24, ResumedWithOtherOrdersAndOtherParameters) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  const auto options_of = [&](const char* targets, const char* saved, bool dora) {
    options::RunOptions options = new_adapter(scratch, "tiny");
    options.adapter.lora_target_modules = targets;
    options.adapter.lora_modules_to_save = saved;
    options.adapter.use_dora = dora;
    options.train.max_steps = 4;
    return options;
  };
  const auto steps_from = [&](train::Run& run, std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step < last; ++step) train::train_step(run, reference_batches(run, step), step);
  };
  const auto check = [&](const char* output, const options::RunOptions& straight_options,
                         const options::RunOptions& reordered,
                         const std::vector<std::pair<options::RunOptions, const char*>>& others) {
    on_rank_0([&] { std::filesystem::create_directories(scratch / output); });
    const auto straight = train::build_run(straight_options, world());
    steps_from(*straight, 0, 2);
    const auto folder = checkpoint::save(scratch / output, {.step = 2, .optimizer_steps = 2}, *straight->shards,
                                         *straight->optimizer, world());
    steps_from(*straight, 2, 4);
    const auto resumed = train::build_run(reordered, world());
    checkpoint::load(folder, {}, *resumed->shards, *resumed->optimizer, world());
    steps_from(*resumed, 2, 4);
    EXPECT_EQ(weights_hash(*resumed), weights_hash(*straight));
    for (const auto& [other, name] : others) {
      const auto run = train::build_run(other, world());
      try {
        checkpoint::load(folder, {}, *run->shards, *run->optimizer, world());
        ADD_FAILURE() << "resumed in spite of " << name;
      } catch (const Error& error) {
        EXPECT_EQ(error.error_class(), ErrorClass::kBadCheckpoint);
        EXPECT_THAT(error.what(),
                    ::testing::AllOf(::testing::HasSubstr("trained parameter"), ::testing::HasSubstr(name),
                                     ::testing::HasSubstr("in this run; keep the model")));
      }
    }
  };
  check("lora", options_of("embed_tokens,q_proj,v_proj", "norm,k_proj", false),
        options_of("v_proj,q_proj,embed_tokens", "k_proj,norm", false),
        {{options_of("embed_tokens,q_proj,v_proj", "norm,k_proj,o_proj", false), "self_attn.o_proj.weight"},
         {options_of("embed_tokens,q_proj,v_proj", "k_proj", false), "input_layernorm.weight"},
         {options_of("q_proj,v_proj", "norm,k_proj", false), "embed_tokens.lora_embedding_A"}});
  check("dora", options_of("q_proj,v_proj", "lm_head", true), options_of("v_proj,q_proj", "lm_head", true),
        {{options_of("q_proj,v_proj", "lm_head", false), "lora_magnitude_vector"},
         {options_of("q_proj,v_proj,k_proj", "lm_head", true), "k_proj.lora_A.weight"}});
}

/// Beside other adapters a table that is trained whole is a copy; the tied head of the same adapter reads that copy.
TEST(SavedModules, TiedCopyIsOneBesideOthers) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", "tiny-llama3"); });
  options::RunOptions options = new_adapter(scratch, "tiny-llama3");
  options.adapter.lora_target_modules = "v_proj";
  options.adapter.lora_modules_to_save = "embed_tokens";
  options.adapter.ensure_weight_tying = true;
  options.train.max_steps = 3;
  const auto alone = run_steps(*train::build_run(options, world()), 0, 3);
  const auto beside = run_steps(*train::build_run(options, world(), {}, {.several_adapters = true}), 0, 3);
  for (std::size_t step = 0; step < 3; ++step)
    EXPECT_NEAR(beside[step].loss, alone[step].loss, 1e-6 * alone[step].loss) << "step " << step;
  EXPECT_NE(alone[2].loss, alone[0].loss);
}

/// The tokens' rows alone are trained, and lie in the folder in the order of the list.
TEST(TokenRows, FolderHasPeftsNamesAndComesBack) {
  for (const char* name : {"tiny", "tiny-llama3"}) {
    SharedScratch scratch;
    on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", name); });
    options::RunOptions options = new_adapter(scratch, name);
    options.adapter.lora_target_modules = "v_proj";
    options.adapter.trainable_token_indices = "302, 54, 202";  // the first row of the data has all three
    const auto tensors = trained_folder(options, scratch);
    EXPECT_EQ(tensors.size(), 4u * 2 + 1) << name;
    const at::Tensor& rows = tensors.at("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta");
    ASSERT_EQ(rows.sizes().vec(), (std::vector<std::int64_t>{3, 64}));
    const auto json = read_json(scratch / "adapter/adapter_config.json");
    EXPECT_EQ(json["trainable_token_indices"], nlohmann::json::array({302, 54, 202}));
    at::Tensor table = at::empty({512, 64}, at::kFloat);
    model::read_elements(io::SafetensorsFolder(data_folder() / "models" / name), "model.embed_tokens.weight", 0, table);
    std::int64_t k = 0;
    for (const std::int64_t token : {302, 54, 202}) {
      // Two steps of AdamW at 1e-2 move no value by more than about 2e-2.
      const double moved = (rows[k++] - table[token]).abs().max().item<double>();
      EXPECT_GT(moved, 0) << name << ", token " << token;
      EXPECT_LT(moved, 0.03) << name << ", token " << token;
    }
  }
}

TEST(GrownVocabulary, NewRowsStartAsTheMeanAndAreSaved) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = new_adapter(scratch, "tiny");
  options.adapter.lora_target_modules = "v_proj";
  options.adapter.lora_modules_to_save = "embed_tokens,lm_head";
  options.model.resize_token_embeddings = 519;
  {
    const auto run = train::build_run(options, world());
    auto weights = full_weights(*run);
    const io::SafetensorsFolder base(options.model.model_name_or_path);
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      at::Tensor old = at::empty({512, 64}, at::kFloat);
      model::read_elements(base, name, 0, old);
      EXPECT_TRUE(at::equal(weights.at(name).narrow(0, 0, 512), old)) << name;
      const at::Tensor mean = old.to(at::kDouble).mean(0);
      for (std::int64_t row = 512; row < 519; ++row)
        EXPECT_LE(relative_l2(weights.at(name)[row], mean), 1e-7) << name << " row " << row;
    }
  }
  const auto tensors = trained_folder(options, scratch);
  EXPECT_EQ(tensors.at("base_model.model.lm_head.weight").size(0), 519);
}

std::string refusal(const options::RunOptions& options) {
  try {
    train::build_run(options, world());
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage) << error.what();
    return error.what();
  }
  return "no error";
}

/// A run that goes on from a checkpoint has the numbers of one that was never stopped; the head of the second model is its table.
TEST(TokenRows, ResumesBitForBit) {
  for (const char* model : {"tiny", "tiny-llama3"}) {
    SharedScratch scratch;
    on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", model); });
    options::RunOptions options = new_adapter(scratch, model);
    options.adapter.lora_target_modules = "v_proj";
    options.adapter.trainable_token_indices = "260,2,90";
    const auto straight = train::build_run(options, world());
    const auto expected = run_steps(*straight, 0, 4);
    const auto run = train::build_run(options, world());
    run_steps(*run, 0, 2);
    const auto folder =
        checkpoint::save(scratch.path(), {.step = 2, .optimizer_steps = 2}, *run->shards, *run->optimizer, world());
    const auto resumed = train::build_run(options, world());
    checkpoint::load(folder, {}, *resumed->shards, *resumed->optimizer, world());
    const auto results = run_steps(*resumed, 2, 4);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(results[i].loss, expected[2 + i].loss) << model << ", step " << 3 + i;
    EXPECT_EQ(weights_hash(*resumed), weights_hash(*straight)) << model;
  }
}

TEST(TokenRows, WhatCannotBeIsRefused) {
  using ::testing::HasSubstr;
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = new_adapter(scratch, "tiny");
  const auto says = [&](const char* tokens, const char* text) {
    options.adapter.trainable_token_indices = tokens;
    EXPECT_THAT(refusal(options), HasSubstr(text)) << tokens;
  };
  says("7", "model.embed_tokens has an adapter or is trained whole already");
  options.adapter.lora_target_modules = "v_proj";
  says("3,512", "--trainable_token_indices: there is no token 512; the model has tokens 0 to 511");
  says("3,7,3", "--trainable_token_indices: token 3 stands there twice");
  says("3,-1", "--trainable_token_indices: '-1' is no number of a token");
  says("3,x", "'x' is no number of a token");
  says("3,99999999999999999999", "is no number of a token");
  options.model.model_name_or_path = (data_folder() / "models/tiny-llama3").string();
  options.adapter.lora_target_modules = "v_proj,lm_head";
  says("3", "this model's head is the embedding");
}

TEST(GrownVocabulary, WhatCannotBeIsRefused) {
  using ::testing::HasSubstr;
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = new_adapter(scratch, "tiny");
  options.model.resize_token_embeddings = 500;
  EXPECT_THAT(refusal(options), HasSubstr("--resize_token_embeddings 500: the model has 512 rows already"));
  options.model.resize_token_embeddings = 520;
  EXPECT_THAT(refusal(options), HasSubstr("new rows of model.embed_tokens would be trained nowhere"));
  options.model.resize_token_embeddings = 0;
  options.adapter.lora_modules_to_save = "emb_tokens";
  EXPECT_THAT(refusal(options), HasSubstr("--lora_modules_to_save: 'emb_tokens' is no module with a weight"));
  options.adapter.lora_modules_to_save = "lm_head";
  options.adapter.ensure_weight_tying = true;
  EXPECT_THAT(refusal(options), HasSubstr("--ensure_weight_tying: the head of this model has a weight of its own"));
}

}  // namespace
}  // namespace shardtune::testing
