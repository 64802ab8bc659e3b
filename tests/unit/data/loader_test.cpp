#include "shardtune/data/loader.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "support.h"

namespace shardtune::data::testing {
namespace {

using Indices = std::vector<std::int64_t>;

Indices counting(std::int64_t count) {
  Indices all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Micro-batches of one step in the order slot by slot, rank by rank; empty ones left out.
std::vector<Indices> micro_batches(const Loader& loader, std::int64_t ranks, std::int64_t epoch, std::int64_t step) {
  std::vector<Indices> batches;
  for (std::int64_t slot = 0; slot < loader.slots(step); ++slot)
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      if (Indices rows = loader.rows(epoch, step, slot, rank); !rows.empty()) batches.push_back(std::move(rows));
  return batches;
}

Indices joined(const std::vector<Indices>& batches) {
  Indices all;
  for (const Indices& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Indices sorted(Indices rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

struct Dealing {
  std::int64_t rows, ranks;
  Indices rows_per_step;
};

TEST(CaseA16, EveryRowOnceWhateverTheNumberOfRanks) {
  for (const Dealing& deal : {Dealing{10, 4, {4, 4, 2}}, Dealing{3, 4, {3}}, Dealing{1, 2, {1}}})
    for (const bool shuffle : {false, true}) {
      const Loader loader(deal.rows, 1, deal.ranks, 1, shuffle, 7);
      ASSERT_EQ(loader.steps_per_epoch(), static_cast<std::int64_t>(deal.rows_per_step.size()));
      Indices all;
      for (std::int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
        EXPECT_EQ(loader.slots(step), 1);  // the same for all ranks: nobody does a collective less
        const Indices rows = joined(micro_batches(loader, deal.ranks, 0, step));
        EXPECT_EQ(static_cast<std::int64_t>(rows.size()), deal.rows_per_step[static_cast<std::size_t>(step)]);
        all.insert(all.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(sorted(all), counting(deal.rows));
    }
}

TEST(CaseA16, AllShapesDealEveryRowOnce) {
  for (std::int64_t rows = 1; rows <= 23; ++rows)
    for (std::int64_t size = 1; size <= 3; ++size)
      for (std::int64_t ranks = 1; ranks <= 4; ++ranks)
        for (std::int64_t accumulation = 1; accumulation <= 3; ++accumulation) {
          const Loader loader(rows, size, ranks, accumulation, true, 3);
          Indices all;
          for (std::int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
            ASSERT_GE(loader.slots(step), 1);
            ASSERT_LE(loader.slots(step), accumulation);
            for (std::int64_t slot = loader.slots(step); slot < accumulation; ++slot)
              for (std::int64_t rank = 0; rank < ranks; ++rank) ASSERT_TRUE(loader.rows(0, step, slot, rank).empty());
            ASSERT_FALSE(loader.rows(0, step, loader.slots(step) - 1, 0).empty());
            const Indices dealt = joined(micro_batches(loader, ranks, 0, step));
            all.insert(all.end(), dealt.begin(), dealt.end());
          }
          ASSERT_EQ(all, loader.order(0));
        }
}

TEST(CaseA02, SameMicroBatchesForAnySplitOfTheGlobalBatch) {
  for (const auto& [ranks, accumulation] : {std::pair{1, 4}, std::pair{2, 2}, std::pair{4, 1}}) {
    const Loader loader(6, 1, ranks, accumulation, false, 0);
    EXPECT_EQ(loader.steps_per_epoch(), 2);
    EXPECT_EQ(micro_batches(loader, ranks, 0, 0), (std::vector<Indices>{{0}, {1}, {2}, {3}}));
    EXPECT_EQ(micro_batches(loader, ranks, 0, 1), (std::vector<Indices>{{4}, {5}}));
  }
  const Loader four(6, 1, 4, 1, false, 0);
  EXPECT_TRUE(four.rows(1, 1, 0, 2).empty());
  EXPECT_TRUE(four.rows(1, 1, 0, 3).empty());
  // With shuffling too, and with micro-batches of 3.
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto one = micro_batches(Loader(31, 3, 1, 4, true, 9), 1, 2, step);
    EXPECT_EQ(micro_batches(Loader(31, 3, 2, 2, true, 9), 2, 2, step), one);
    EXPECT_EQ(micro_batches(Loader(31, 3, 4, 1, true, 9), 4, 2, step), one);
  }
}

TEST(CaseA22, StopAndResumeGivesTheUninterruptedOrder) {
  for (const std::int64_t rows : {6, 37})
    for (const std::int64_t stop_epoch : {1, 2}) {
      const Loader whole(rows, 1, 1, 2, true, 42);
      Indices straight;
      Indices resumed;
      for (std::int64_t epoch = 0; epoch < 3; ++epoch)
        for (std::int64_t step = 0; step < whole.steps_per_epoch(); ++step)
          for (const std::int64_t row : joined(micro_batches(whole, 1, epoch, step))) straight.push_back(row);

      LoaderPosition position;
      const auto run = [&](const Loader& loader, std::int64_t until_epoch, std::int64_t until_step) {
        while (position.epoch < until_epoch || (position.epoch == until_epoch && position.step_in_epoch < until_step)) {
          for (const std::int64_t row : joined(micro_batches(loader, 1, position.epoch, position.step_in_epoch)))
            resumed.push_back(row);
          if (++position.step_in_epoch == loader.steps_per_epoch()) position = {position.epoch + 1, 0};
        }
      };
      run(Loader(rows, 1, 1, 2, true, 42), stop_epoch, whole.steps_per_epoch() / 2);
      run(Loader(rows, 1, 1, 2, true, 42), 3, 0);  // a new process has only the position
      EXPECT_EQ(resumed, straight);

      const auto count = static_cast<std::ptrdiff_t>(rows);
      for (std::ptrdiff_t epoch = 0; epoch < 3; ++epoch)
        EXPECT_EQ(sorted({straight.begin() + epoch * count, straight.begin() + (epoch + 1) * count}), counting(rows));
      EXPECT_NE(whole.order(1), whole.order(2));
      EXPECT_NE(whole.order(0), whole.order(1));
    }
}

TEST(Shuffle, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(Loader(37, 1, 1, 1, true, 5).order(3), Loader(37, 4, 8, 2, true, 5).order(3));
  EXPECT_NE(Loader(37, 1, 1, 1, true, 5).order(3), Loader(37, 1, 1, 1, true, 6).order(3));
  EXPECT_NE(Loader(37, 1, 1, 1, true, 5).order(3), Loader(37, 1, 1, 1, true, 3).order(5));
  EXPECT_EQ(Loader(5, 1, 1, 1, false, 5).order(3), counting(5));
  EXPECT_TRUE(Loader(0, 1, 1, 1, true, 5).order(0).empty());
  EXPECT_EQ(Loader(0, 1, 1, 1, true, 5).steps_per_epoch(), 0);
}

// The rule written out once more in Python with exact integers: an order must never change between versions of the program,
// since checkpoints hold a position only.
TEST(Shuffle, IsThePublishedOne) {
  EXPECT_EQ(Loader(8, 1, 1, 1, true, 42).order(0), (Indices{2, 1, 0, 7, 5, 6, 3, 4}));
  EXPECT_EQ(Loader(8, 1, 1, 1, true, 42).order(1), (Indices{6, 5, 0, 3, 2, 1, 4, 7}));
}

// Each of the 24 orders of 4 rows is equally likely: 24,000 epochs, 1,000 expected each. The bound is 5 standard
// deviations of a single count (sqrt(1000 * 23 / 24) = 31).
TEST(Shuffle, AllOrdersAreEquallyLikely) {
  const Loader loader(4, 1, 1, 1, true, 1);
  std::map<Indices, int> counts;
  for (std::int64_t epoch = 0; epoch < 24000; ++epoch) ++counts[loader.order(epoch)];
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 155);
}

TEST(Loader, WrongUseIsAnError) {
  expect_error(ErrorClass::kInternal, {"-1 rows"}, [] { Loader(-1, 1, 1, 1, true, 0); });
  expect_error(ErrorClass::kInternal, {"0 ranks"}, [] { Loader(1, 1, 0, 1, true, 0); });
  const Loader loader(4, 1, 2, 1, true, 0);
  expect_error(ErrorClass::kInternal, {"step 2 of 2"}, [&] { loader.slots(2); });
  expect_error(ErrorClass::kInternal, {"rank 2 of 2"}, [&] { loader.rows(0, 0, 0, 2); });
  expect_error(ErrorClass::kInternal, {"row 7 of 0"}, [] { collate({}, {7}); });
}

}  // namespace
}  // namespace shardtune::data::testing
