// Collectives with exactly representable contents, sizes that do not divide, size 0, and messages cut into pieces.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "shardtune/comm/agree.h"
#include "support/mpi_world.h"

namespace shardtune::testing {
namespace {

/// Byte i of what rank `from` sends to rank `to`.
std::byte pattern(int from, int to, std::size_t i) {
  return static_cast<std::byte>(
      (static_cast<std::size_t>(from) * 31 + static_cast<std::size_t>(to) * 7 + i * 13 + (i >> 8)) & 0xFF);
}

void check_all_gather(comm::Communicator& communicator, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::byte> local(bytes), full(bytes * ranks);
  for (std::size_t i = 0; i < bytes; ++i) local[i] = pattern(communicator.rank(), 0, i);
  communicator.all_gather_start(local, full)->wait();
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(full[r * bytes + i], pattern(static_cast<int>(r), 0, i))
          << bytes << " bytes, rank " << r << ", byte " << i;
}

void check_exchange(comm::Communicator& communicator, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::byte> send(bytes * ranks), receive(bytes * ranks);
  for (std::size_t to = 0; to < ranks; ++to)
    for (std::size_t i = 0; i < bytes; ++i)
      send[to * bytes + i] = pattern(communicator.rank(), static_cast<int>(to), i);
  communicator.exchange_start(send, receive)->wait();
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(receive[from * bytes + i], pattern(static_cast<int>(from), communicator.rank(), i))
          << bytes << " bytes from " << from;
}

TEST(Collectives, EverySize) {
  for (const std::size_t bytes : {0u, 1u, 3u, 4096u, 100'003u}) {
    check_all_gather(world(), bytes);
    check_exchange(world(), bytes);
  }
}

TEST(CaseA30, MessagesOverTheLimitAreCut) {
  // A limit of 1 MiB stands for the 2 GiB of MPI's int counts: sizes one below, at and above it, and several pieces.
  const auto small = comm::make_mpi_communicator({.max_message_bytes = 1 << 20});
  for (const std::size_t bytes : {(1u << 20) - 1, 1u << 20, (1u << 20) + 8, (3u << 20) + 5}) {
    check_all_gather(*small, bytes);
    check_exchange(*small, bytes);
    std::vector<std::byte> data(bytes);
    if (small->rank() == 0)
      for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(0, 1, i);
    small->broadcast(data, 0);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], pattern(0, 1, i));
  }
}

TEST(Collectives, AFewMayBeUnderWay) {
  const auto ranks = static_cast<std::size_t>(world().size());
  std::vector<int> a(1, world().rank()), b(1, 100 + world().rank()), all_a(ranks), all_b(ranks);
  auto first = world().all_gather_start(std::as_bytes(std::span(a)), std::as_writable_bytes(std::span(all_a)));
  auto second = world().all_gather_start(std::as_bytes(std::span(b)), std::as_writable_bytes(std::span(all_b)));
  second->wait();
  first->wait();
  for (std::size_t r = 0; r < ranks; ++r) {
    EXPECT_EQ(all_a[r], static_cast<int>(r));
    EXPECT_EQ(all_b[r], 100 + static_cast<int>(r));
  }
}

TEST(Collectives, CountsAreExact) {
  const std::uint64_t others = static_cast<std::uint64_t>(world().size()) - 1;
  world().reset_counts();
  check_all_gather(world(), 1000);
  check_exchange(world(), 24);
  comm::Counts expected;
  if (others > 0)
    expected = {.all_gathers = 1, .all_gather_bytes = 1000 * others, .exchanges = 1, .exchange_bytes = 24 * others};
  EXPECT_EQ(world().counts(), expected);
}

TEST(Agree, OneFailureEndsThePhaseOnAllRanks) {
  const int last = world().size() - 1;
  try {
    comm::agree(world(), [&] {
      if (world().rank() == last) fail(ErrorClass::kBadData, "line 7 is broken");
    });
    FAIL() << "no error on rank " << world().rank();
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadData);
    EXPECT_EQ(std::string(error.what()),
              last == 0 ? "line 7 is broken" : "rank " + std::to_string(last) + ": line 7 is broken");
  }
}

TEST(Agree, TheSameFailureEverywhereNamesNoRank) {
  try {
    comm::agree(world(), [] { fail(ErrorClass::kUsage, "no such folder"); });
    FAIL();
  } catch (const comm::AgreedError& error) {
    EXPECT_STREQ(error.what(), "no such folder");
    EXPECT_EQ(error.exit_code(), 2);
  }
}

TEST(Agree, NothingHappensWhenAllSucceed) {
  EXPECT_NO_THROW(comm::agree(world(), [] {}));
  EXPECT_NO_THROW(comm::agree_on_root(world(), [] {}));
}

TEST(Agree, WhatOnlyTheRootDoesNamesNoRank) {
  int runs = 0;
  try {
    comm::agree_on_root(world(), [&] {
      ++runs;
      fail(ErrorClass::kBadStorage, "no room");
    });
    FAIL() << "no error on rank " << world().rank();
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadStorage);
    EXPECT_STREQ(error.what(), "no room");
  }
  EXPECT_EQ(runs, world().rank() == 0 ? 1 : 0);
}

TEST(Agree, PathsThatCannotBeExaminedAreOfTheStorage) {
  const std::string name(300, 'x');
  try {
    comm::agree(world(), [&] { std::filesystem::create_directory("/tmp/" + name); });
    FAIL();
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadStorage);
    EXPECT_EQ(std::string(error.what()), "/tmp/" + name + ": File name too long");
  }
}

}  // namespace
}  // namespace shardtune::testing
