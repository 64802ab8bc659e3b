// The communicator that plays one rank and moves nothing: who is in its groups, and what it counts. Numbers by hand.
#include <gtest/gtest.h>

#include "shardtune/comm/ghost.h"
#include "shardtune/comm/mesh.h"
#include "shardtune/core/error.h"
#include "shardtune/core/work.h"

namespace shardtune::comm {
namespace {

std::span<std::byte> nothing(std::size_t bytes) { return {static_cast<std::byte*>(nullptr), bytes}; }

TEST(Ghost, GroupsOfAMesh) {
  // 12 ranks, 4 a node; shard groups of 6, inner groups of 3. Rank 8 is the third of the second shard group.
  const auto world = make_ghost_communicator(8, 12, 4);
  Mesh mesh(*world, 6, 3);
  EXPECT_EQ(mesh.shard().size(), 6);
  EXPECT_EQ(mesh.shard().rank(), 2);
  EXPECT_EQ(mesh.inner().size(), 3);
  EXPECT_EQ(mesh.inner().rank(), 2);
  EXPECT_EQ(mesh.replicate().size(), 2);
  EXPECT_EQ(mesh.replicate().rank(), 1);
  EXPECT_EQ(mesh.node().size(), 4);  // ranks 8 to 11
  EXPECT_EQ(mesh.node().rank(), 0);
}

TEST(Ghost, CountsWhatCrossesBetweenRanks) {
  const auto world = make_ghost_communicator(0, 4, 4);
  world->all_gather_start(nothing(1000), nothing(4000))->wait();
  world->exchange_start(nothing(800), nothing(800))->wait();
  world->barrier();
  const Counts expected{
      .all_gathers = 1, .all_gather_bytes = 3000, .exchanges = 1, .exchange_bytes = 600, .control = 1};
  EXPECT_EQ(world->counts(), expected);
}

TEST(Ghost, OneRankCountsNothing) {
  const auto world = make_ghost_communicator(0, 1, 8);
  world->all_gather_start(nothing(8), nothing(8))->wait();
  world->exchange_start(nothing(8), nothing(8))->wait();
  world->barrier();
  EXPECT_EQ(world->counts(), Counts{});
}

TEST(Ghost, EveryRankHasThisRanksValue) {
  const auto world = make_ghost_communicator(2, 3, 1);
  EXPECT_EQ(world->gather_values(7), (std::vector<int>{7, 7, 7}));
}

TEST(Ghost, RefusesWhatIsNotThere) {
  EXPECT_THROW(make_ghost_communicator(4, 4, 1), Error);
  EXPECT_THROW(make_ghost_communicator(0, 0, 1), Error);
  EXPECT_THROW(make_ghost_communicator(0, 1, 0), Error);
}

/// Remembers what it is told.
class Ear : public WorkListener {
 public:
  void compute(const ComputeWork&) override {}
  std::size_t start(const CollectiveWork& work) override {
    started.push_back(work);
    return started.size() + 10;
  }
  void await(std::size_t handle) override { awaited.push_back(handle); }
  void phase(const std::string&) override {}
  std::vector<CollectiveWork> started;
  std::vector<std::size_t> awaited;
};

TEST(Ghost, TellsTheListener) {
  const auto world = make_ghost_communicator(5, 8, 4);
  Ear ear;
  const ListenScope scope(ear);
  const auto gather = world->all_gather_start(nothing(100), nothing(800));
  world->gather_values(1);
  gather->wait();
  ASSERT_EQ(ear.started.size(), 2u);
  EXPECT_EQ(ear.started[0].kind, CollectiveKind::kAllGather);
  EXPECT_EQ(ear.started[0].bytes, 700);
  EXPECT_EQ(ear.started[0].ranks, 8);
  EXPECT_EQ(ear.started[0].ranks_per_node, 4);
  EXPECT_EQ(ear.started[1].kind, CollectiveKind::kControl);
  EXPECT_EQ(ear.awaited, (std::vector<std::size_t>{11}));
}

}  // namespace
}  // namespace shardtune::comm
