// Acceptance cases over ranks; the numbers are those of the case files.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/export/export.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

std::filesystem::path uneven() { return case_folder() / "rows-uneven.jsonl"; }

/// The first `count` lines of rows-uneven.jsonl, or line `only` `count` times.
void write_lines(const std::filesystem::path& to, int count, int only = 0) {
  std::ifstream in(uneven());
  std::ofstream out(to);
  std::string line;
  for (int i = 1; std::getline(in, line) && (only > 0 || i <= count); ++i) {
    if (only == 0) out << line << "\n";
    if (only == i)
      for (int copy = 0; copy < count; ++copy) out << line << "\n";
  }
}

TEST(CaseA01, FourRowsInOneStepOverRanks) {  // (c) 2 ranks x 2, (d) 4 x 1, and 3 ranks with a short slot
  const auto expected = read_json(case_folder() / "rows-uneven-expected.json")["step_over_rows_1_to_4"];
  SharedScratch scratch;
  on_rank_0([&] { write_lines(scratch / "four.jsonl", 4); });
  options::RunOptions options = case_options(scratch / "four.jsonl");
  options.train.gradient_accumulation_steps = (4 + world().size() - 1) / world().size();
  const auto run = train::build_run(options, world());
  const auto result = run_steps(*run, 0, 1)[0];
  EXPECT_EQ(run->steps_per_epoch, 1);
  EXPECT_EQ(result.targets, 68);
  EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-4);
  EXPECT_NEAR(result.grad_norm, expected["grad_norm"].get<double>(), 1e-3 * expected["grad_norm"].get<double>());
}

TEST(CaseA02A19, TrainingTraceWithShortWindows) {
  if (world().size() == 3) {
    // Three ranks cannot share windows of four rows; all six rows in one step have known values too.
    const auto expected = read_json(case_folder() / "rows-uneven-expected.json")["packed_all_rows_in_one_sequence"];
    options::RunOptions options = case_options(uneven());
    options.train.gradient_accumulation_steps = 2;
    const auto run = train::build_run(options, world());
    const auto result = run_steps(*run, 0, 1)[0];
    EXPECT_EQ(result.targets, 106);
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-4);
    EXPECT_NEAR(result.grad_norm, expected["grad_norm"].get<double>(), 1e-3 * expected["grad_norm"].get<double>());
    return;
  }
  const auto file = read_json(case_folder() / "rows-uneven-expected.json");
  SharedScratch scratch;
  on_rank_0([&] {
    for (const char* split : {"train.jsonl", "test.jsonl"}) std::filesystem::copy_file(uneven(), scratch / split);
  });
  options::RunOptions options = case_options(scratch.path());
  options.train.gradient_accumulation_steps = 4 / world().size();
  options.train.eval_strategy = "epoch";
  const auto run = train::build_run(options, world());
  ASSERT_EQ(run->total_steps, 4);
  const auto results = run_steps(*run, 0, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& expected = file["training_trace"]["steps"][i];
    EXPECT_EQ(results[i].targets, expected["targets"].get<std::int64_t>());
    EXPECT_NEAR(results[i].loss, expected["loss"].get<double>(), 2e-4) << "step " << i + 1;
    const double norm = expected["grad_norm_before_clip"];
    EXPECT_NEAR(results[i].grad_norm, norm, 1e-3 * norm) << "step " << i + 1;
  }
  EXPECT_NEAR(train::evaluate(*run).loss, file["training_trace"]["loss_over_all_rows_after"].get<double>(), 2e-4);
}

TEST(CaseA03, RatesFollowTheOptimizerSteps) {
  const auto file = read_json(case_folder() / "lr-expected.json");
  // Eight rows a step (nine on three ranks, with more rows): 10 steps, and 11 when three rows are left over.
  const int accumulation = world().size() == 3 ? 3 : 8 / world().size(), rows = 10 * accumulation * world().size();
  SharedScratch scratch;
  for (const auto& [name, rates] : file["schedules"].items()) {
    const int steps = static_cast<int>(rates.size());
    on_rank_0([&] { write_lines(scratch / "rows.jsonl", steps == 10 ? rows : rows + 3, 4); });
    options::RunOptions options = case_options(scratch / "rows.jsonl");
    options.train.gradient_accumulation_steps = accumulation;
    options.train.num_train_epochs = 1;
    options.optim.learning_rate = file["peak"];
    options.optim.lr_scheduler_type = name.substr(0, name.find('_'));
    options.optim.warmup_steps = std::stod(name.substr(name.find("warmup") + 6));
    const auto run = train::build_run(options, world());
    ASSERT_EQ(run->total_steps, steps) << name;
    const auto results = run_steps(*run, 0, steps);
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_NEAR(results[i].learning_rate, rates[i].get<double>(), 1e-18) << name << " step " << i + 1;
    world().barrier();  // nobody writes the next file while another still reads
  }
}

TEST(CaseA16, EveryRowOnceWhateverTheRanks) {
  SharedScratch scratch;
  for (const int rows : {10, 3, 1})
    for (const bool shuffle : {false, true}) {
      on_rank_0([&] { write_lines(scratch / "rows.jsonl", rows, 3); });
      options::RunOptions options = case_options(scratch / "rows.jsonl");
      options.data.shuffle = shuffle;
      const auto run = train::build_run(options, world());
      const std::int64_t steps = (rows + world().size() - 1) / world().size();
      ASSERT_EQ(run->steps_per_epoch, steps);
      std::vector<std::int64_t> tokens;
      for (const auto& result : run_steps(*run, 0, steps)) tokens.push_back(result.tokens / 9);  // row 3 has 9 tokens
      if (rows == 10 && world().size() == 4) {
        EXPECT_EQ(tokens, (std::vector<std::int64_t>{4, 4, 2}));
      }
      std::vector<std::int64_t> dealt;
      for (std::int64_t step = 0; step < steps; ++step)
        for (int rank = 0; rank < world().size(); ++rank)
          for (const std::int64_t row : run->train_loader->rows(0, step, 0, rank)) dealt.push_back(row);
      std::sort(dealt.begin(), dealt.end());
      ASSERT_EQ(dealt.size(), static_cast<std::size_t>(rows));
      for (int row = 0; row < rows; ++row) EXPECT_EQ(dealt[static_cast<std::size_t>(row)], row);
      world().barrier();  // nobody writes the next file while another still reads
    }
}

TEST(CaseA17, EvaluationOverRanks) {
  SharedScratch scratch;
  on_rank_0([&] {
    for (const char* split : {"train.jsonl", "test.jsonl"}) std::filesystem::copy_file(uneven(), scratch / split);
  });
  for (const int batch : {1, 4}) {
    options::RunOptions options = case_options(scratch.path());
    options.train.eval_strategy = "epoch";
    options.train.per_device_eval_batch_size = batch;
    const auto result = train::evaluate(*train::build_run(options, world()));
    EXPECT_EQ(result.targets, 106);
    EXPECT_NEAR(result.loss, 6.83533, 2e-4);
  }
}

/// Losses of the four copies of row 2, in row order, in a step with dropout.
std::vector<double> copies_with_dropout(const std::filesystem::path& rows, std::uint64_t seed) {
  options::RunOptions options = case_options(rows);
  options.adapter.lora_dropout = 0.5;
  options.data.seed = seed;
  const auto run = train::build_run(options, world());
  std::vector<double> losses(4), mine(4);
  for (std::size_t row = 0; row < 4; ++row) {
    const bool own = static_cast<int>(row) % world().size() == world().rank();
    const auto batch = own ? data::collate(run->train_rows, {static_cast<std::int64_t>(row)}) : data::MicroBatch{};
    mine[row] = run->engine->forward_backward({&batch, 1}, 0, 1.0).front();
  }
  std::vector<double> all(4 * static_cast<std::size_t>(world().size()));
  world().gather_control(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) losses[i % 4] += all[i];
  return losses;
}

TEST(CaseA20, EqualRowsOnRanksDropDifferently) {
  SharedScratch scratch;
  on_rank_0([&] { write_lines(scratch / "copies.jsonl", 4, 2); });
  const auto first = copies_with_dropout(scratch / "copies.jsonl", 1),
             again = copies_with_dropout(scratch / "copies.jsonl", 1),
             other = copies_with_dropout(scratch / "copies.jsonl", 2);
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = a + 1; b < 4; ++b) EXPECT_NE(first[a], first[b]) << a << " " << b;
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(CaseA21A22, ResumedRunGoesOnExactly) {
  SharedScratch scratch;
  options::RunOptions options = case_options(uneven());
  options.adapter.lora_dropout = 0.3;
  options.data.shuffle = true;
  options.train.num_train_epochs = 3;
  const auto straight = train::build_run(options, world());
  const std::int64_t total = straight->total_steps;
  const auto expected = run_steps(*straight, 0, total);
  const std::string hash = weights_hash(*straight);
  for (std::int64_t stop = 1; stop < total; stop += 2) {
    const auto before = train::build_run(options, world());
    run_steps(*before, 0, stop);
    const data::LoaderPosition position{stop / before->steps_per_epoch, stop % before->steps_per_epoch};
    const auto folder = checkpoint::save(scratch.path(), {.step = stop, .position = position, .optimizer_steps = stop},
                                         *before->shards, *before->optimizer, world());
    const auto after = train::build_run(options, world());
    const auto state = checkpoint::load(folder, {}, *after->shards, *after->optimizer, world());
    ASSERT_EQ(state.step, stop);
    ASSERT_EQ(state.position.epoch * after->steps_per_epoch + state.position.step_in_epoch, stop);
    const auto rest = run_steps(*after, stop, total);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i].loss, expected[static_cast<std::size_t>(stop) + i].loss);
      EXPECT_EQ(rest[i].grad_norm, expected[static_cast<std::size_t>(stop) + i].grad_norm);
    }
    EXPECT_EQ(weights_hash(*after), hash) << "stopped after step " << stop;
  }
}

TEST(CaseA38, ExportAndCheckpointHoldEveryRanksSlice) {
  SharedScratch scratch;
  const auto run = train::build_run(case_options(uneven()), world());
  const float mark = static_cast<float>(world().rank() + 1);
  for (std::size_t unit = 0; unit < run->shards->units(); ++unit) {
    if (run->shards->trained(unit).empty()) continue;
    run->shards->trained(unit).local().fill_(mark);
    run->optimizer->state(0, unit).fill_(mark * 10);
    run->optimizer->state(1, unit).fill_(mark * 100);
  }
  exporting::write_adapter(scratch.path(), *run->lora, "base", *run->shards, world());
  const auto expected = read_tensors(case_folder() / "lora-start/adapter_model.safetensors");
  const auto found = read_tensors(scratch / "adapter_model.safetensors");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t unit = 0; unit < run->shards->units(); ++unit) {
    const fsdp::FlatShard& shard = run->shards->trained(unit);
    for (std::size_t t = 0; t < shard.layout().tensors(); ++t) {
      const std::string name = "base_model.model." + run->shards->spec(unit).parameters[shard.slot(t)].name;
      ASSERT_EQ(found.at(name).sizes().vec(), expected.at(name).sizes().vec());
      const at::Tensor flat = found.at(name).reshape({-1});
      for (std::int64_t i = 0; i < flat.numel(); ++i) {
        const std::int64_t owner = (shard.layout().offset(t) + i) / shard.layout().shard_elements();
        ASSERT_EQ(flat[i].item<float>(), static_cast<float>(owner + 1)) << name << " element " << i;
      }
    }
  }
  const auto folder =
      checkpoint::save(scratch.path(), {.step = 7, .optimizer_steps = 7}, *run->shards, *run->optimizer, world());
  const auto fresh = train::build_run(case_options(uneven()), world());
  checkpoint::load(folder, {}, *fresh->shards, *fresh->optimizer, world());
  EXPECT_EQ(fresh->optimizer->steps_taken(), 7);
  for (std::size_t unit = 0; unit < fresh->shards->units(); ++unit) {
    if (fresh->shards->trained(unit).empty()) continue;
    EXPECT_TRUE(at::all(fresh->shards->trained(unit).local() == mark).item<bool>());
    EXPECT_TRUE(at::all(fresh->optimizer->state(0, unit) == mark * 10).item<bool>());
    EXPECT_TRUE(at::all(fresh->optimizer->state(1, unit) == mark * 100).item<bool>());
  }
}

}  // namespace
}  // namespace shardtune::testing
