// Streams against sums by hand: what overlaps, what waits, and what the totals say of it.
#include "../../../src/train/plan/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "plan_support.h"
#include "shardtune/core/error.h"

namespace shardtune::train::plan::test {
namespace {

TEST(Timeline, AGatherHidesUnderCompute) {
  Timeline timeline(simple_hardware());
  const auto handle = timeline.start(gather(3));
  timeline.compute(product(5));
  timeline.await(handle);
  const Totals totals = timeline.totals();
  EXPECT_DOUBLE_EQ(totals.seconds, 5);
  EXPECT_DOUBLE_EQ(totals.exposed_seconds, 0);
  EXPECT_DOUBLE_EQ(totals.busy(Stream::kGather), 3);
  EXPECT_DOUBLE_EQ(totals.busy(Stream::kCompute), 5);
}

TEST(Timeline, WhatDoesNotHideIsExposed) {
  Timeline timeline(simple_hardware());
  const auto handle = timeline.start(gather(5));
  timeline.compute(product(3));
  timeline.await(handle);
  timeline.compute(product(1));
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 6);
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 2);
}

TEST(Timeline, ACollectiveBeginsWhenEarlierComputeIsDone) {
  Timeline timeline(simple_hardware());
  timeline.compute(product(2));
  timeline.await(timeline.start(exchange(3)));
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 5);
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 3);
  EXPECT_DOUBLE_EQ(timeline.totals().busy(Stream::kReduce), 3);
}

TEST(Timeline, CollectivesOfOneStreamGoInOrder) {
  Timeline timeline(simple_hardware());
  const auto first = timeline.start(gather(2)), second = timeline.start(gather(3));
  timeline.await(first);
  timeline.compute(product(1));  // from 2 to 3
  timeline.await(second);
  timeline.await(first);  // long over
  timeline.compute(product(1));
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 6);
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 4);
  EXPECT_DOUBLE_EQ(timeline.totals().busy(Stream::kGather), 5);  // the wait for its turn is not the second one's
}

TEST(Timeline, WithoutAnAwaitNothingWaitsBeforeTheEnd) {
  Timeline timeline(simple_hardware(), /*keep_spans=*/true);
  timeline.start(gather(10));
  timeline.compute(product(1));
  timeline.compute(product(1));
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 10);
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 8);
  EXPECT_DOUBLE_EQ(timeline.trace().spans[1].begin_seconds, 1);
}

TEST(Timeline, StreamsOnDifferentPathsDoNotSlowEachOther) {
  Timeline timeline(simple_hardware());
  timeline.start(gather(4));
  timeline.start(exchange_over_network(3));
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 4);
  EXPECT_DOUBLE_EQ(timeline.totals().busy(Stream::kReduce), 3);
}

TEST(Timeline, StreamsOnOnePathShareIt) {
  Timeline timeline(simple_hardware());
  const auto gathered = timeline.start(gather(4)), exchanged = timeline.start(exchange(2));
  timeline.await(exchanged);  // at 4; half of the gather is done
  timeline.compute(product(1));
  timeline.await(gathered);  // at 6, alone from 4
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 6);
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 5);
  EXPECT_DOUBLE_EQ(timeline.totals().busy(Stream::kReduce), 4);
  EXPECT_DOUBLE_EQ(timeline.totals().busy(Stream::kGather), 6);
}

TEST(Timeline, SharingBeginsWhenTheSecondBegins) {
  Timeline timeline(simple_hardware());
  timeline.start(gather(4));
  timeline.compute(product(2));
  timeline.await(timeline.start(exchange(1)));  // from 2 to 4
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 3);  // the gather had 2 left at 2 and 1 at 4
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 5);
}

TEST(Timeline, LaunchesTakeNoPath) {
  Hardware hardware = simple_hardware();
  hardware.collective_launch_seconds = 1;
  Timeline timeline(hardware);
  timeline.start(gather(4));  // launch to 1, then 4
  timeline.compute(product(2));
  timeline.await(timeline.start(exchange(1)));  // launch to 3: the gather has 2 left; both halve until 5
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 4);  // the gather ends at 6
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 6);
}

TEST(Timeline, ControlBlocksWhatComesAfterIt) {
  Hardware hardware = simple_hardware();
  hardware.collective_launch_seconds = 1;
  Timeline timeline(hardware, /*keep_spans=*/true);
  timeline.compute(product(2));
  const auto handle = timeline.start({.ranks = 8, .ranks_per_node = 8});  // 3 rounds: to 5
  timeline.await(handle);  // changes nothing
  timeline.start(gather(2));  // 5 to 8, its launch included
  timeline.compute(product(1));  // 5 to 6
  const Totals totals = timeline.totals();
  EXPECT_DOUBLE_EQ(totals.seconds, 8);
  EXPECT_DOUBLE_EQ(totals.busy(Stream::kControl), 3);
  EXPECT_DOUBLE_EQ(totals.exposed_seconds, 5);
  const auto& spans = timeline.trace().spans;
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[1].kind, "control");
  EXPECT_DOUBLE_EQ(spans[1].begin_seconds, 2);
  EXPECT_DOUBLE_EQ(spans[2].begin_seconds, 5);
  EXPECT_DOUBLE_EQ(spans[3].begin_seconds, 5);
  EXPECT_DOUBLE_EQ(spans[3].end_seconds, 8);
}

TEST(Timeline, TransfersUnderWayGoOnDuringControl) {
  Hardware hardware = simple_hardware();
  hardware.collective_launch_seconds = 1;
  Timeline timeline(hardware);
  const auto handle = timeline.start(gather(3));  // to 4
  timeline.start({.ranks = 4, .ranks_per_node = 4});  // to 2
  timeline.await(handle);
  EXPECT_DOUBLE_EQ(timeline.totals().seconds, 4);
  EXPECT_DOUBLE_EQ(timeline.totals().exposed_seconds, 4);
}

TEST(Timeline, CountsByKind) {
  Timeline timeline(simple_hardware());
  timeline.compute({.kind = ComputeKind::kMatmul, .type = Dtype::kBF16, .flops = 200, .bytes = 5});
  timeline.compute({.kind = ComputeKind::kMatmul, .type = Dtype::kF32, .flops = 20, .bytes = 1});
  timeline.compute({.kind = ComputeKind::kAttention, .type = Dtype::kBF16, .flops = 400, .bytes = 10});
  timeline.compute({.kind = ComputeKind::kRows, .type = Dtype::kF32, .flops = 7, .bytes = 70});
  timeline.start(gather(2));
  timeline.start(exchange_over_network(3));
  timeline.start({.bytes = 4, .ranks = 2, .ranks_per_node = 2});
  const Totals totals = timeline.totals();
  EXPECT_EQ(totals.compute_kind_seconds, (std::array<double, 3>{3, 4, 7}));
  EXPECT_EQ(totals.flops, (std::array<double, 3>{220, 400, 7}));
  EXPECT_EQ(totals.memory_bytes, (std::array<double, 3>{6, 10, 70}));
  EXPECT_EQ(totals.collective_bytes, (std::array<double, 3>{8, 3, 4}));
  EXPECT_EQ(totals.busy_seconds, (std::array<double, 4>{14, 2, 3, 1}));
}

TEST(Timeline, AStepAloneAfterAReset) {
  Timeline timeline(simple_hardware(), /*keep_spans=*/true);
  timeline.phase("warm-up");
  timeline.compute(product(2));
  const auto before = timeline.start(gather(3));
  timeline.phase("step 2");
  timeline.reset();  // at 5
  timeline.await(before);
  timeline.compute(product(1));
  timeline.await(timeline.start(exchange(1)));
  const Totals totals = timeline.totals();
  EXPECT_DOUBLE_EQ(totals.seconds, 2);
  EXPECT_DOUBLE_EQ(totals.exposed_seconds, 1);
  EXPECT_EQ(totals.flops, (std::array<double, 3>{100, 0, 0}));
  EXPECT_EQ(totals.busy_seconds, (std::array<double, 4>{1, 0, 1, 0}));
  const Trace& trace = timeline.trace();
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_DOUBLE_EQ(trace.spans[0].begin_seconds, 0);
  EXPECT_EQ(trace.phases.at(trace.spans[0].phase), "step 2");
}

TEST(Timeline, SpansHavePhaseKindAndAmounts) {
  Timeline timeline(simple_hardware(), /*keep_spans=*/true);
  timeline.phase("forward layer 3");
  const auto handle = timeline.start(gather(2));
  timeline.phase("forward layer 4");
  timeline.compute(product(1));
  timeline.await(handle);
  timeline.totals();
  const Trace& trace = timeline.trace();
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_EQ(trace.phases.at(trace.spans[0].phase), "forward layer 4");
  EXPECT_EQ(trace.spans[0].kind, "matmul");
  EXPECT_EQ(trace.spans[0].flops, 100);
  EXPECT_EQ(trace.phases.at(trace.spans[1].phase), "forward layer 3");  // when it was started
  EXPECT_EQ(trace.spans[1].kind, "all-gather");
  EXPECT_EQ(trace.spans[1].bytes, 8);
  timeline.totals();
  EXPECT_EQ(trace.spans.size(), 2u);

  Timeline without(simple_hardware());
  without.compute(product(1));
  without.start(gather(1));
  without.totals();
  EXPECT_TRUE(without.trace().spans.empty());
}

TEST(Timeline, AHandleThatNobodyGaveIsOurOwnMistake) {
  Timeline timeline(simple_hardware());
  const auto handle = timeline.start(gather(1));
  try {
    timeline.await(handle + 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kInternal);
  }
}

/// Any mixture of works, of odd sizes and with latencies.
void play_at_random(Timeline& timeline, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::size_t> handles;
  const auto amount = [&] { return static_cast<double>(random() % 1000) / 7; };
  for (int i = 0; i < 400; ++i) {
    switch (random() % 6) {
      case 0: handles.push_back(timeline.start(gather(amount()))); break;
      case 1: handles.push_back(timeline.start(exchange(amount()))); break;
      case 2: handles.push_back(timeline.start(exchange_over_network(amount()))); break;
      case 3: timeline.start({.ranks = 4, .ranks_per_node = 2}); break;
      case 4: timeline.compute(product(amount())); break;
      default:
        if (!handles.empty()) timeline.await(handles[random() % handles.size()]);
    }
  }
}

TEST(Timeline, WhateverComesStreamsDoOneThingAtATime) {
  Hardware hardware = simple_hardware();
  hardware.collective_launch_seconds = 0.3;
  hardware.kernel_launch_seconds = 0.1;
  for (unsigned seed = 0; seed < 20; ++seed) {
    Timeline timeline(hardware, /*keep_spans=*/true);
    play_at_random(timeline, seed);
    const Totals totals = timeline.totals();
    EXPECT_NEAR(totals.seconds, totals.busy(Stream::kCompute) + totals.exposed_seconds, 1e-6);
    std::map<Stream, double> free, busy;
    for (const Span& span : timeline.trace().spans) {
      EXPECT_GE(span.begin_seconds, free[span.stream]);
      EXPECT_GE(span.end_seconds, span.begin_seconds);
      EXPECT_LE(span.end_seconds, totals.seconds);
      free[span.stream] = span.end_seconds;
      busy[span.stream] += span.end_seconds - span.begin_seconds;
    }
    for (const auto& [stream, seconds] : busy) EXPECT_NEAR(seconds, totals.busy(stream), 1e-6);
  }
}

}  // namespace
}  // namespace shardtune::train::plan::test
