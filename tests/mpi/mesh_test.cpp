// Groups of ranks, and the memory that the ranks of a node share.
#include <gtest/gtest.h>

#include <algorithm>

#include "shardtune/comm/mesh.h"
#include "shardtune/core/error.h"
#include "support/mpi_world.h"

namespace shardtune::testing {
namespace {

TEST(Mesh, GroupsOfTheWorld) {
  const int ranks = world().size(), rank = world().rank();
  for (int shard = 1; shard <= ranks; ++shard) {
    if (ranks % shard != 0) {
      EXPECT_THROW(comm::Mesh(world(), shard), Error);
      continue;
    }
    comm::Mesh mesh(world(), shard);
    ASSERT_EQ(mesh.shard().size(), shard);
    ASSERT_EQ(mesh.replicate().size(), ranks / shard);
    const std::vector<int> together = mesh.shard().gather_values(rank),
                           same_part = mesh.replicate().gather_values(rank);
    for (int i = 0; i < shard; ++i) EXPECT_EQ(together[static_cast<std::size_t>(i)], rank / shard * shard + i);
    for (int i = 0; i < ranks / shard; ++i) EXPECT_EQ(same_part[static_cast<std::size_t>(i)], rank % shard + i * shard);
  }
}

TEST(Mesh, InnerGroupsAreNeighbours) {
  if (world().size() != 4) return;  // the one size at hand with a group between one and all
  comm::Mesh mesh(world(), 4, 2);
  const std::vector<int> inner = mesh.inner().gather_values(world().rank());
  EXPECT_EQ(inner, (world().rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}));
  EXPECT_THROW(comm::Mesh(world(), 4, 3), Error);
}

TEST(Mesh, CountsAreThoseOfAllGroups) {
  comm::Mesh mesh(world(), 1);
  mesh.reset_counts();
  std::vector<std::byte> one(3), all(3 * static_cast<std::size_t>(world().size()));
  mesh.replicate().all_gather_start(one, all)->wait();
  mesh.shard().all_gather_start(one, one)->wait();  // alone: nothing moves
  const bool moves = world().size() > 1;
  EXPECT_EQ(mesh.counts().all_gathers, moves ? 1u : 0u);
  EXPECT_EQ(mesh.counts().all_gather_bytes, moves ? 3u * static_cast<unsigned>(world().size() - 1) : 0u);
}

TEST(SharedMemory, WhatOneWritesAllRead) {
  comm::Mesh mesh(world());
  comm::Communicator& node = mesh.node();
  const auto ranks = static_cast<std::size_t>(node.size());
  const auto memory = node.allocate_shared(ranks * 1000);
  ASSERT_EQ(memory->bytes().size(), ranks * 1000);
  EXPECT_TRUE(
      std::all_of(memory->bytes().begin(), memory->bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
  memory->fence();  // all have looked before anybody writes
  const auto mine = memory->bytes().subspan(static_cast<std::size_t>(node.rank()) * 1000, 1000);
  std::fill(mine.begin(), mine.end(), static_cast<std::byte>(node.rank() + 1));
  memory->fence();
  for (std::size_t i = 0; i < ranks * 1000; ++i) ASSERT_EQ(memory->bytes()[i], static_cast<std::byte>(i / 1000 + 1));
}

TEST(SharedMemory, MoreThanThereIsIsRefusedOnAllRanks) {
  try {
    world().allocate_shared(1ull << 60);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("--share_base_on_node false"), std::string::npos) << error.what();
  }
  world().barrier();  // still usable
}

}  // namespace
}  // namespace shardtune::testing
