// The lines of metrics.jsonl: keys as promised, numbers in full precision.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/train/metrics.h"
#include "shardtune/train/run.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

TEST(Metrics, LinesAndKeys) {
  Scratch scratch;
  train::MetricsWriter writer(scratch.path());
  writer.train({.step = 3,
                .total_steps = 9,
                .epoch = 0.5,
                .loss = 1.0 / 3,
                .grad_norm = 2.5,
                .learning_rate = 1e-4,
                .tokens_per_second = 100,
                .num_tokens = 1 << 20,
                .peak_rss_bytes = 7,
                .seconds_left = 61});
  writer.eval({.step = 3, .epoch = 0.5, .eval_loss = 0.1, .eval_targets = 106, .eval_runtime = 2});
  writer.finish({.step = 9,
                 .epoch = 1,
                 .train_loss = 0.7,
                 .train_runtime = 60,
                 .tokens_per_second = 99,
                 .num_tokens = 5,
                 .peak_rss_bytes = 8});
  writer.error("bad_data", "line \"7\"");
  std::ifstream in(scratch / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  for (const char* key :
       {"step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_per_second", "num_tokens", "peak_rss_bytes"})
    EXPECT_TRUE(lines[0].contains(key)) << key;
  EXPECT_EQ(lines[0]["loss"].get<double>(), 1.0 / 3);
  EXPECT_FALSE(lines[0].contains("eval_loss"));
  EXPECT_EQ(lines[1]["eval_loss"].get<double>(), 0.1);
  EXPECT_FALSE(lines[1].contains("loss"));
  EXPECT_EQ(lines[2]["train_runtime"].get<double>(), 60);
  EXPECT_EQ(lines[3]["error"], "line \"7\"");
}

TEST(Metrics, LinesAfterHalfALineParse) {
  Scratch scratch;
  std::ofstream(scratch / "metrics.jsonl") << "{\"step\":1}\n{\"step\":";  // as a node leaves it that loses power
  train::MetricsWriter(scratch.path()).error("bad_data", "again");
  std::ifstream in(scratch / "metrics.jsonl");
  std::string first, half, last;
  std::getline(in, first), std::getline(in, half), std::getline(in, last);
  EXPECT_EQ(half, "{\"step\":");
  EXPECT_EQ(nlohmann::json::parse(last)["error"], "again");
}

TEST(Metrics, Durations) {
  EXPECT_EQ(train::format_duration(0.4), "0:00:00");
  EXPECT_EQ(train::format_duration(61), "0:01:01");
  EXPECT_EQ(train::format_duration(360000), "100:00:00");
}

TEST(Steps, EpochsAndMaximum) {
  train::TrainOptions options;
  options.num_train_epochs = 2.5;
  EXPECT_EQ(train::total_step_count(options, 3), 8);  // 7.5 steps, the last one is taken
  options.max_steps = 5;
  EXPECT_EQ(train::total_step_count(options, 3), 5);
}

}  // namespace
}  // namespace shardtune::testing
