// Case A14 for the strategies that split, and what the log says. Texts of 6, 52, 9, 5, 27 and 13 tokens in rows of 24.
#include <map>
#include <numeric>

#include "shardtune/data/loader.h"
#include "shardtune/data/rows.h"
#include "support.h"

namespace shardtune::data::testing {
namespace {

const std::vector<Example>& uneven() {
  static const std::vector<Example> examples = [] {
    const Tokenizer tokenizer = Tokenizer::load(cases() / "base-gqa");
    return read_examples(
        cases() / "rows-uneven.jsonl", {}, [&]() -> const Tokenizer& { return tokenizer; }, 520);
  }();
  return examples;
}

DataOptions rows_of_24(const char* strategy, const char* attention = "row") {
  DataOptions options;
  options.max_length = 24;
  options.packing = true;
  options.packing_strategy = strategy;
  options.wrapped_attention = attention;
  return options;
}

/// Every token of every text exactly once, the pieces of a text in their order.
void expect_every_token_once(const std::vector<Row>& rows) {
  std::map<std::int64_t, Ids> found;
  for (const Row& row : rows) {
    std::size_t at = 0;
    for (const Piece& piece : row.pieces) {
      Ids& ids = found[piece.sample];
      EXPECT_EQ(ids.size(), static_cast<std::size_t>(piece.first_position)) << "text " << piece.sample + 1;
      for (std::int32_t i = 0; i < piece.tokens; ++i) ids.push_back(row.ids[at++]);
    }
    EXPECT_EQ(at, row.ids.size());
  }
  ASSERT_EQ(found.size(), uneven().size());
  for (const auto& [sample, ids] : found)
    EXPECT_EQ(ids, uneven()[static_cast<std::size_t>(sample)].ids) << "text " << sample + 1;
}

/// No segment holds tokens of two texts: attention stays inside one.
void expect_texts_apart(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    Ids pieces;
    for (const Piece& piece : row.pieces) pieces.push_back(piece.tokens);
    EXPECT_EQ(row.segments, pieces);
  }
}

TEST(CaseA14, SplitRowsKeepEveryTokenAndTheTextsApart) {
  RowStatistics statistics;
  const std::vector<Row> rows = make_rows(uneven(), rows_of_24("bfd_split"), statistics);
  expect_every_token_once(rows);
  expect_texts_apart(rows);
  ASSERT_EQ(rows.size(), 5u);
  for (std::size_t full = 0; full < 3; ++full) EXPECT_EQ(rows[full].segments, Ids{24});  // 24 of 52, twice; of 27, once
  EXPECT_EQ(rows[3].segments, (Ids{13, 9}));
  EXPECT_EQ(rows[4].segments, (Ids{6, 5, 4, 3}));  // 4 and 3 are the tails
  EXPECT_EQ(statistics.tokens_kept, 112);
  EXPECT_EQ(statistics.tokens_dropped, 0);
  EXPECT_EQ(statistics.examples_cut, 0);
  EXPECT_EQ(statistics.examples_split, 2);
}

TEST(CaseA14, WrappedRowsCanKeepTheTextsApart) {
  RowStatistics statistics;
  const std::vector<Row> rows = make_rows(uneven(), rows_of_24("wrapped", "documents"), statistics);
  expect_every_token_once(rows);
  expect_texts_apart(rows);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].segments, (Ids{6, 18}));
  EXPECT_EQ(rows[2].segments, (Ids{10, 9, 5}));
  EXPECT_EQ(rows[4].segments, (Ids{3, 13}));
  const MicroBatch batch = collate(rows, {0});
  EXPECT_EQ(batch.targets[5], kIgnoredLabel);  // the next token is another text's first
  EXPECT_EQ(batch.targets[4], rows[0].ids[5]);
  Ids positions(24);
  std::iota(positions.begin(), positions.begin() + 6, 0);
  std::iota(positions.begin() + 6, positions.end(), 0);
  EXPECT_EQ(batch.positions, positions);
}

// Targets: tokens less one for each segment.
TEST(CaseA14, TheLogTellsWhatWasCutOrSplit) {
  const auto line = [](const std::vector<Example>& examples, const DataOptions& options) {
    RowStatistics statistics;
    make_rows(examples, options, statistics);
    return describe(statistics);
  };
  EXPECT_EQ(line(uneven(), rows_of_24("bfd")),
            "4 rows from 6 examples, 81 tokens; 2 examples cut at --max_length, 31 tokens dropped; 75 targets");
  EXPECT_EQ(line(uneven(), rows_of_24("bfd_split")),
            "5 rows from 6 examples, 112 tokens; 2 examples split over rows; 103 targets");
  EXPECT_EQ(line(uneven(), rows_of_24("wrapped")),
            "5 rows from 6 examples, 112 tokens; 2 examples split over rows; 107 targets");
  EXPECT_EQ(line(uneven(), rows_of_24("wrapped", "documents")),
            "5 rows from 6 examples, 112 tokens; 2 examples split over rows; 103 targets");
  DataOptions plain = rows_of_24("bfd");
  plain.packing = false;
  EXPECT_EQ(line(uneven(), plain),
            "6 rows from 6 examples, 81 tokens; 2 examples cut at --max_length, 31 tokens dropped; 75 targets");
  std::vector<Example> blank = uneven();  // the text of 13 tokens is not trained
  blank[5].labels.assign(13, kIgnoredLabel);
  EXPECT_EQ(line(blank, plain),
            "5 rows from 6 examples, 68 tokens; 2 examples cut at --max_length, 44 tokens dropped; 1 row holds no "
            "trained token and is left out; 63 targets");
  plain.max_length = 128;
  EXPECT_EQ(line(blank, plain),
            "5 rows from 6 examples, 99 tokens; 1 row holds no trained token and is left out, 13 tokens dropped; 94 "
            "targets");
}

TEST(PackedRows, SplitAtExactMultiples) {
  Example two_rows;
  two_rows.ids.assign(48, 7);
  two_rows.labels = two_rows.ids;
  Example one_more = two_rows;
  one_more.ids.push_back(8);
  one_more.labels.push_back(8);
  RowStatistics statistics;
  EXPECT_EQ(make_rows({two_rows}, rows_of_24("bfd_split"), statistics).size(), 2u);
  // The lone 49th token is a row without a target: left out and counted.
  EXPECT_EQ(make_rows({one_more}, rows_of_24("bfd_split"), statistics).size(), 2u);
  EXPECT_EQ(statistics.examples_without_target, 1);
  EXPECT_EQ(statistics.tokens_dropped, 1);
}

TEST(PackedRows, CutIsTheDefault) {  // a lone tail of a reply would be trained without its question
  EXPECT_EQ(DataOptions().packing_strategy, "bfd");
  EXPECT_EQ(DataOptions().wrapped_attention, "row");  // as TRL
}

}  // namespace
}  // namespace shardtune::data::testing
