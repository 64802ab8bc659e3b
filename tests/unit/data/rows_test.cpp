#include "shardtune/data/rows.h"

#include <numeric>

#include "data/packing.h"
#include "shardtune/data/loader.h"
#include "support.h"

namespace shardtune::data::testing {
namespace {

Example example_of(std::int32_t tokens, std::int32_t first = 0) {
  Example example;
  for (std::int32_t i = 0; i < tokens; ++i) example.ids.push_back(first + i);
  example.labels = example.ids;
  return example;
}

/// The six texts of the acceptance cases: 6, 52, 9, 5, 27 and 13 tokens.
std::vector<Example> uneven() {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "base-gqa");
  return read_examples(
      cases() / "rows-uneven.jsonl", {}, [&]() -> const Tokenizer& { return tokenizer; }, 520);
}

DataOptions options_of(std::int64_t max_length, const char* packing) {
  DataOptions options;
  options.max_length = max_length;
  options.packing = packing != nullptr;
  if (packing != nullptr) options.packing_strategy = packing;
  return options;
}

std::int64_t all_targets(const std::vector<Row>& rows) {
  std::vector<std::int64_t> which(rows.size());
  std::iota(which.begin(), which.end(), 0);
  return collate(rows, which).target_count;
}

TEST(CaseA13, PackedAndUnpackedHaveTheSameTargets) {
  RowStatistics statistics;
  const std::vector<Row> packed = make_rows(uneven(), options_of(128, "bfd"), statistics);
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(packed[0].ids.size(), 112u);
  EXPECT_EQ(packed[0].segments, (std::vector<std::int32_t>{52, 27, 13, 9, 6, 5}));
  EXPECT_EQ(statistics.tokens_kept, 112);
  EXPECT_EQ(statistics.tokens_dropped, 0);
  EXPECT_EQ(all_targets(packed), 106);
  const std::vector<Row> unpacked = make_rows(uneven(), options_of(128, nullptr), statistics);
  ASSERT_EQ(unpacked.size(), 6u);
  EXPECT_EQ(all_targets(unpacked), 106);
}

TEST(CaseA14, CutTokensAreCounted) {
  RowStatistics statistics;
  for (const char* packing : {"bfd", static_cast<const char*>(nullptr)}) {
    make_rows(uneven(), options_of(24, packing), statistics);
    EXPECT_EQ(statistics.tokens_in, 112);
    EXPECT_EQ(statistics.tokens_kept, 81);
    EXPECT_EQ(statistics.tokens_dropped, 31);
    EXPECT_EQ(statistics.examples_cut, 2);
  }
}

TEST(CaseA14, WrappingKeepsEveryTokenOnce) {
  const std::vector<Example> examples = uneven();
  std::vector<std::int32_t> all;
  for (const Example& example : examples) all.insert(all.end(), example.ids.begin(), example.ids.end());
  RowStatistics statistics;
  const std::vector<Row> rows = make_rows(examples, options_of(24, "wrapped"), statistics);
  EXPECT_EQ(statistics.tokens_dropped, 0);
  EXPECT_EQ(statistics.examples_cut, 0);
  std::vector<std::int32_t> joined;
  for (const Row& row : rows) {
    EXPECT_EQ(row.segments, std::vector<std::int32_t>{static_cast<std::int32_t>(row.ids.size())});
    joined.insert(joined.end(), row.ids.begin(), row.ids.end());
  }
  EXPECT_EQ(joined, all);
  ASSERT_EQ(rows.size(), 5u);  // 4 * 24 + 16
  EXPECT_EQ(rows[4].ids.size(), 16u);
  // Row 2 holds tokens 24..47 of the stream: the 52-token text begins at 6.
  ASSERT_EQ(rows[1].pieces.size(), 1u);
  EXPECT_EQ(rows[1].pieces[0].sample, 1);
  EXPECT_EQ(rows[1].pieces[0].first_position, 18);
  EXPECT_EQ(rows[1].pieces[0].tokens, 24);
}

TEST(CaseA06, RowsWithoutATrainedTokenAreLeftOutAndCounted) {
  std::vector<Example> examples = {example_of(10), example_of(10), example_of(10)};
  examples[0].labels.assign(10, kIgnoredLabel);
  examples[0].labels[8] = 8;  // behind the cut
  examples[1].labels.assign(10, kIgnoredLabel);
  examples[1].labels[0] = 0;  // the first token has no token before it
  RowStatistics statistics;
  const std::vector<Row> rows = make_rows(examples, options_of(6, nullptr), statistics);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].pieces[0].sample, 2);
  EXPECT_EQ(rows[0].ids.back(), 5);  // cut without a made-up end
  EXPECT_EQ(statistics.examples_without_target, 2);
  EXPECT_EQ(statistics.examples_cut, 3);
  EXPECT_EQ(statistics.tokens_kept, 6);
  EXPECT_EQ(statistics.tokens_dropped, 24);
  examples.pop_back();
  for (const char* packing : {"bfd", "wrapped", static_cast<const char*>(nullptr)}) {
    examples[0].labels[8] = packing == nullptr ? 8 : kIgnoredLabel;
    examples[1].labels[0] = packing == nullptr ? 0 : kIgnoredLabel;
    expect_error(ErrorClass::kBadData,
                 {"t.jsonl (evaluation): no trained token within --max_length 6", "in 2 examples"},
                 [&] { make_rows(examples, options_of(6, packing), statistics, "t.jsonl (evaluation)"); });
  }
}

TEST(Rows, OptionsAreChecked) {
  RowStatistics statistics;
  const std::vector<Example> examples = {example_of(4)};
  expect_error(ErrorClass::kUsage, {"--max_length is 0"},
               [&] { make_rows(examples, options_of(0, nullptr), statistics); });
  expect_error(ErrorClass::kUsage, {"--packing_strategy 'ffd'", "bfd, bfd_split or wrapped"},
               [&] { make_rows(examples, options_of(8, "ffd"), statistics); });
  DataOptions options = options_of(8, "wrapped");
  options.wrapped_attention = "rows";
  expect_error(ErrorClass::kUsage, {"--wrapped_attention 'rows'", "row or documents"},
               [&] { make_rows(examples, options, statistics); });
}

TEST(Rows, PackingWorksOnGroupsOfAThousand) {
  std::vector<Example> examples(1001, example_of(3));
  RowStatistics statistics;
  // 999 examples fill 333 rows of 9; example 1000 has its row for itself, as has example 1001 of the next group.
  EXPECT_EQ(make_rows(examples, options_of(9, "bfd"), statistics).size(), 335u);
  EXPECT_EQ(make_rows(examples, options_of(9, "wrapped"), statistics).size(), 335u);
  EXPECT_EQ(statistics.tokens_kept, 3003);
}

using Bins = std::vector<std::vector<std::size_t>>;

// Worked out by hand from the rule.
TEST(BestFitDecreasing, SmallestSpaceThatFitsThenLongestWaiting) {
  EXPECT_EQ(best_fit_decreasing({5, 7, 3, 2}, 10), (Bins{{1, 2}, {0, 3}}));
  EXPECT_EQ(best_fit_decreasing({6, 6, 3, 3, 1, 1}, 10), (Bins{{0, 2, 4}, {1, 3, 5}}));
  // The second bin (10 + 9) has space 1 before the first (12 + 7), so it gets the first item of length 1.
  EXPECT_EQ(best_fit_decreasing({12, 10, 9, 7, 1, 1}, 20), (Bins{{0, 3, 5}, {1, 2, 4}}));
  EXPECT_EQ(best_fit_decreasing({10, 10, 0}, 10), (Bins{{0}, {1}}));
  EXPECT_EQ(best_fit_decreasing({}, 10), Bins{});
}

TEST(Collate, LaysRowsEndToEnd) {
  RowStatistics statistics;
  std::vector<Example> examples = {example_of(3, 10), example_of(2, 20), example_of(4, 30)};
  examples[0].labels[1] = kIgnoredLabel;
  const std::vector<Row> rows = make_rows(examples, options_of(5, "bfd"), statistics);
  ASSERT_EQ(rows.size(), 2u);  // {4}, {3, 2}
  const MicroBatch batch = collate(rows, {1, 0});
  EXPECT_EQ(batch.ids, (Ids{10, 11, 12, 20, 21, 30, 31, 32, 33}));
  EXPECT_EQ(batch.targets, (Ids{-100, 12, -100, 21, -100, 31, 32, 33, -100}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(batch.segments, (Ids{3, 2, 4}));
  EXPECT_EQ(batch.samples, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(batch.document_positions, (Ids{0, 1, 2, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(batch.rows, (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(batch.target_count, 5);
  EXPECT_TRUE(collate(rows, {}).empty());
}

TEST(Collate, WrappedRowsRunOnButDropoutPositionsBelongToDocuments) {
  RowStatistics statistics;
  const std::vector<Row> rows = make_rows({example_of(3, 10), example_of(4, 20)}, options_of(4, "wrapped"), statistics);
  const MicroBatch batch = collate(rows, {0, 1});
  EXPECT_EQ(batch.ids, (Ids{10, 11, 12, 20, 21, 22, 23}));
  EXPECT_EQ(batch.targets, (Ids{11, 12, 20, -100, 22, 23, -100}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 3, 0, 1, 2}));
  EXPECT_EQ(batch.segments, (Ids{4, 3}));
  EXPECT_EQ(batch.samples, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(batch.document_positions, (Ids{0, 1, 2, 0, 1, 2, 3}));
}

}  // namespace
}  // namespace shardtune::data::testing
