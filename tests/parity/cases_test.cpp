// Acceptance cases that one process can show; the numbers are those of the case files.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/optim/schedule.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Message of the error that building the run must give.
std::string build_error(const options::RunOptions& options, ErrorClass expected) {
  const auto communicator = comm::make_self_communicator();
  try {
    train::build_run(options, *communicator);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(CaseA01, ShortRowsWeighByTheirTokens) {
  const auto expected = read_json(case_folder() / "rows-uneven-expected.json")["step_over_rows_1_to_4"];
  Scratch scratch;
  std::istringstream all(read_file(case_folder() / "rows-uneven.jsonl"));
  std::ofstream four(scratch / "four.jsonl");
  std::string line;
  for (int i = 0; i < 4 && std::getline(all, line); ++i) four << line << "\n";
  four.close();
  for (const int rows : {4, 1}) {
    options::RunOptions options = case_options(scratch / "four.jsonl");
    options.train.per_device_train_batch_size = rows;
    options.train.gradient_accumulation_steps = 4 / rows;
    const auto communicator = comm::make_self_communicator();
    const auto run = train::build_run(options, *communicator);
    const auto result = run_steps(*run, 0, 1)[0];
    EXPECT_EQ(result.targets, expected["targets"].get<std::int64_t>());
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-4) << rows << " rows a micro-batch";
    EXPECT_NEAR(result.grad_norm, expected["grad_norm"].get<double>(), 1e-3 * expected["grad_norm"].get<double>());
  }
}

TEST(CaseA03, RatesOfEveryStep) {
  const auto file = read_json(case_folder() / "lr-expected.json");
  for (const auto& [name, rates] : file["schedules"].items()) {
    optim::OptimOptions options;
    options.learning_rate = file["peak"];
    options.lr_scheduler_type = name.substr(0, name.find('_'));
    options.warmup_steps = std::stod(name.substr(name.find("warmup") + 6));
    const auto total = std::stoll(name.substr(name.find("total") + 5));
    ASSERT_EQ(static_cast<std::int64_t>(rates.size()), total);
    for (std::int64_t step = 0; step < total; ++step)
      EXPECT_NEAR(optim::learning_rate_at(options, step, total), rates[static_cast<std::size_t>(step)].get<double>(),
                  1e-18)
          << name << " " << step;
  }
}

TEST(CaseA17, EvaluationDoesNotDependOnTheBatchSize) {
  const auto expected = read_json(case_folder() / "rows-uneven-expected.json");
  double loss_sum = 0;
  std::int64_t targets = 0;
  for (const auto& row : expected["per_row"]) {
    loss_sum += row["loss_sum"].get<double>();
    targets += row["targets"].get<std::int64_t>();
  }
  Scratch scratch;
  for (const char* split : {"train", "test"})
    std::filesystem::copy_file(case_folder() / "rows-uneven.jsonl", scratch / (std::string(split) + ".jsonl"));
  for (const int batch : {1, 4}) {
    options::RunOptions options = case_options(scratch.path());
    options.train.eval_strategy = "epoch";
    options.train.per_device_eval_batch_size = batch;
    const auto communicator = comm::make_self_communicator();
    const auto result = train::evaluate(*train::build_run(options, *communicator));
    EXPECT_EQ(result.targets, 106);
    EXPECT_EQ(result.targets, targets);
    EXPECT_NEAR(result.loss, loss_sum / static_cast<double>(targets), 2e-4);
    EXPECT_NEAR(result.loss, 6.83533, 2e-4);
  }
}

/// Mean loss of each row of rows-uneven.jsonl on a base without an adapter.
std::vector<double> row_losses(const std::filesystem::path& base) {
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(plain_options(base, case_folder() / "rows-uneven.jsonl"), *communicator);
  std::vector<double> losses;
  for (std::size_t row = 0; row < run->train_rows.size(); ++row) {
    const auto batch = data::collate(run->train_rows, {static_cast<std::int64_t>(row)});
    losses.push_back(run->engine->evaluate(batch) / static_cast<double>(batch.target_count));
  }
  return losses;
}

void expect_losses(const std::vector<double>& found, const nlohmann::json& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t row = 0; row < found.size(); ++row)
    EXPECT_NEAR(found[row], expected[row].get<double>(), 2e-4) << "row " << row + 1;
}

TEST(CaseA35, ShardsOfMixedTypesLoad) {
  expect_losses(row_losses(case_folder() / "base-sharded-mixed"),
                read_json(case_folder() / "base-sharded-mixed-expected.json")["mean_loss_per_row"]);
}

TEST(CaseA35, MissingShardIsNamedBeforeAnyWeightIsRead) {
  const std::string message =
      build_error(plain_options(case_folder() / "base-index-missing-shard", case_folder() / "rows-uneven.jsonl"),
                  ErrorClass::kBadModel);
  EXPECT_THAT(message, ::testing::HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(CaseA44, Llama3Tables) {
  const auto tables = read_json(case_folder() / "rope-llama3-tables.json");
  for (const auto& [name, entry] : tables.items()) {
    if (!entry.is_object() || !entry.contains("inv_freq")) continue;
    const auto& c = entry["config"];
    const model::RotaryConfig rotary{.theta = c["rope_theta"],
                                     .type = "llama3",
                                     .factor = c["factor"],
                                     .low_freq_factor = c["low_freq_factor"],
                                     .high_freq_factor = c["high_freq_factor"],
                                     .original_length = c["original_max_position_embeddings"]};
    const auto found = model::rotary_inverse_frequencies(rotary, c["head_dim"]);
    ASSERT_EQ(found.size(), entry["inv_freq"].size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double value = entry["inv_freq"][i];
      EXPECT_NEAR(found[i], value, 1e-6 * value) << name << " " << i;
    }
  }
}

TEST(CaseA44, RowLossesWithAllThreeBands) {
  expect_losses(row_losses(case_folder() / "base-gqa"),
                read_json(case_folder() / "adapters-expected.json")["base-gqa"]["mean_loss_per_row"]);
}

/// A copy of base-gqa whose config.json was changed.
void make_changed_base(const Scratch& scratch, const std::function<void(nlohmann::json&)>& change) {
  std::filesystem::copy(case_folder() / "base-gqa", scratch / "base");
  auto config = read_json(case_folder() / "base-gqa/config.json");
  change(config);
  std::filesystem::remove(scratch / "base/config.json");
  std::ofstream(scratch / "base/config.json") << config.dump();
}

TEST(CaseA44, UnknownRopeTypeIsRefusedByName) {
  Scratch scratch;
  make_changed_base(scratch, [](auto& config) { config["rope_scaling"]["rope_type"] = "yarn"; });
  EXPECT_THAT(build_error(plain_options(scratch / "base", case_folder() / "rows-uneven.jsonl"), ErrorClass::kBadModel),
              ::testing::HasSubstr("'yarn'"));
}

TEST(CaseA45, SpareEmbeddingRowsAreLegal) {
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(case_options(case_folder() / "rows-uneven.jsonl"), *communicator);  // (a)
  EXPECT_EQ(run_steps(*run, 0, 1).size(), 1u);
  Scratch scratch;  // (b) ids 512 to 516 of the larger tokenizer use spare rows
  std::filesystem::copy(case_folder() / "base-gqa", scratch / "base");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(case_folder() / "tok-bpe-added" / file, scratch / "base" / file,
                               std::filesystem::copy_options::overwrite_existing);
  std::ofstream(scratch / "rows.jsonl") << R"({"text": "one gpu two"})"
                                        << "\n";
  const auto spare = train::build_run(plain_options(scratch / "base", scratch / "rows.jsonl"), *communicator);
  EXPECT_THAT(spare->train_rows[0].ids, ::testing::Contains(512));
  EXPECT_TRUE(std::isfinite(run_steps(*spare, 0, 1)[0].loss));
}

TEST(CaseA45, VocabularySizeAgainstTheTensor) {  // (c)
  Scratch scratch;
  make_changed_base(scratch, [](auto& config) { config["vocab_size"] = 512; });
  const std::string message =
      build_error(plain_options(scratch / "base", case_folder() / "rows-uneven.jsonl"), ErrorClass::kBadModel);
  EXPECT_THAT(message, ::testing::AllOf(::testing::HasSubstr("520"), ::testing::HasSubstr("512")));
}

TEST(CaseA45, IdsAreCheckedAgainstTheEmbedding) {  // (d)
  Scratch scratch;
  std::ofstream(scratch / "legal.jsonl") << R"({"input_ids": [1, 519, 2]})"
                                         << "\n";
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(plain_options(case_folder() / "base-gqa", scratch / "legal.jsonl"), *communicator);
  EXPECT_TRUE(std::isfinite(run_steps(*run, 0, 1)[0].loss));
  std::ofstream(scratch / "bad.jsonl") << R"({"input_ids": [1, 2]})"
                                       << "\n"
                                       << R"({"input_ids": [1, 520, 2]})"
                                       << "\n";
  const std::string message =
      build_error(plain_options(case_folder() / "base-gqa", scratch / "bad.jsonl"), ErrorClass::kBadData);
  EXPECT_THAT(message, ::testing::AllOf(::testing::HasSubstr("520"), ::testing::HasSubstr("2")));
}

TEST(CaseA50, TargetsThatMatchNothing) {
  const model::ModelConfig config = model::read_config(case_folder() / "base-gqa");
  const auto error = [&](const char* targets) {
    try {
      adapters::resolve_targets(targets, config);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error("q_proj,qproj"),
              ::testing::AllOf(::testing::HasSubstr("'qproj'"), ::testing::HasSubstr("'q_proj'")));  // (a)
  EXPECT_THAT(error("Q_PROJ"),
              ::testing::AllOf(::testing::HasSubstr("'Q_PROJ'"), ::testing::HasSubstr("'q_proj'")));  // (b)
  EXPECT_EQ(adapters::resolve_targets(R"(.*layers\.[01]\.mlp.*_proj)", config).size(), 6u);  // (c)
  EXPECT_THAT(adapters::resolve_targets("lm_head", config), ::testing::ElementsAre("lm_head"));  // (d)
  EXPECT_THAT(error("norm"), ::testing::HasSubstr("not a linear layer"));  // (e)
  EXPECT_EQ(adapters::resolve_targets("ALL-linear", config).size(), 14u);
  EXPECT_EQ(adapters::resolve_targets("model.layers.1.mlp.up_proj", config).size(), 1u);
}

TEST(CaseA50, HeadAdapterTrains) {  // (d)
  options::RunOptions options = plain_options(case_folder() / "base-gqa", case_folder() / "rows-uneven.jsonl");
  options.adapter.lora_target_modules = "lm_head";
  options.optim.learning_rate = 1e-2;
  options.train.gradient_accumulation_steps = 6;
  options.train.num_train_epochs = 3;
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  EXPECT_EQ(full_weights(*run).size(), 2u);
  const auto results = run_steps(*run, 0, 3);
  EXPECT_LT(results[2].loss, results[0].loss);
}

}  // namespace
}  // namespace shardtune::testing
