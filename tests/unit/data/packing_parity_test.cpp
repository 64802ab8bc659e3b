// Rows against those of TRL 1.16 on the same conversations and texts (tiny's tokenizer).
#include "shardtune/data/loader.h"
#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

std::vector<Row> rows_like(const json& settings, const char* file, RowStatistics& statistics) {
  DataOptions options;
  options.max_length = settings["max_length"];
  options.packing = settings["packing"];
  if (options.packing) options.packing_strategy = settings["packing_strategy"];
  const Tokenizer tokenizer = Tokenizer::load(tiny_model());
  const auto examples = read_examples(
      data_folder() / "packing" / file, options, [&]() -> const Tokenizer& { return tokenizer; }, 512);
  return make_rows(examples, options, statistics);
}

/// Rows token by token, and the first two as the batch that TRL's collator makes of them.
void expect_same(const char* reference_name, const char* file) {
  const json reference = read_json(data_folder() / "packing" / reference_name);
  RowStatistics statistics;
  const std::vector<Row> rows = rows_like(reference["settings"], file, statistics);
  ASSERT_GT(rows.size(), 1u);
  ASSERT_EQ(rows.size(), reference["rows"].size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].ids, reference["rows"][i].get<Ids>()) << "row " << i + 1;
    EXPECT_EQ(rows[i].labels, rows[i].ids) << "row " << i + 1;
    const Ids whole{static_cast<std::int32_t>(rows[i].ids.size())};
    EXPECT_EQ(rows[i].segments, reference.contains("seq_lengths") ? reference["seq_lengths"][i].get<Ids>() : whole)
        << "row " << i + 1;
  }
  // TRL's batch of the first two rows: padded rows, or one flat row with restarting positions. Labels are not shifted.
  const MicroBatch ours = collate(rows, {0, 1});
  const json& batch = reference["batch"];
  Ids ids, positions, targets;
  for (std::size_t r = 0; r < batch["input_ids"].size(); ++r) {
    const Ids row = batch["input_ids"][r].get<Ids>();
    const Ids labels = batch["labels"][r].get<Ids>();
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (batch.contains("attention_mask") && batch["attention_mask"][r][i] == 0) continue;
      ids.push_back(row[i]);
      positions.push_back(batch.contains("position_ids") ? batch["position_ids"][r][i].get<std::int32_t>()
                                                         : static_cast<std::int32_t>(i));
      targets.push_back(i + 1 < row.size() ? labels[i + 1] : kIgnoredLabel);
    }
  }
  EXPECT_EQ(ours.ids, ids);
  EXPECT_EQ(ours.positions, positions);
  EXPECT_EQ(ours.targets, targets);
  EXPECT_EQ(statistics.tokens_in, statistics.tokens_kept + statistics.tokens_dropped);
}

TEST(Packing, BestFitDecreasingAsTrl) { expect_same("bfd.json", "conversations.jsonl"); }
TEST(Packing, BestFitDecreasingWithSplitsAsTrl) { expect_same("bfd_split.json", "conversations.jsonl"); }
TEST(Packing, WrappedAsTrl) { expect_same("wrapped.json", "conversations.jsonl"); }
TEST(Packing, UnpackedAsTrl) { expect_same("padded.json", "conversations.jsonl"); }
TEST(Packing, TextRowsAsTrl) { expect_same("text_padded.json", "texts.jsonl"); }

}  // namespace
}  // namespace shardtune::data::testing
