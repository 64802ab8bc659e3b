// Case A30 at its real sizes: messages around 2 GiB and the fp32 embedding of Llama-3-70B. Needs about 13 GB of memory and 5 GB of
// disk for two ranks, so it is no part of the usual run: ctest -C Big -R big_messages.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "shardtune/io/safetensors.h"
#include "shared_scratch.h"

namespace shardtune::testing {
namespace {

std::uint64_t word(int rank, std::uint64_t index) {
  return (index + 1) * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(rank);
}

void fill(std::span<std::byte> data, int rank) {
  for (std::uint64_t i = 0; i * 8 < data.size(); ++i) {
    const std::uint64_t value = word(rank, i);
    std::memcpy(data.data() + i * 8, &value, std::min<std::size_t>(8, data.size() - i * 8));
  }
}

void expect(std::span<const std::byte> data, int rank) {
  for (std::uint64_t i = 0; i * 8 < data.size(); ++i) {
    const std::uint64_t value = word(rank, i);
    ASSERT_EQ(std::memcmp(data.data() + i * 8, &value, std::min<std::size_t>(8, data.size() - i * 8)), 0)
        << "byte " << i * 8;
  }
}

constexpr std::uint64_t kLimit = 1ull << 31;
constexpr std::uint64_t kEmbedding = 128256ull * 8192 * 4;

TEST(CaseA30, GatherAndExchangeAroundTwoGibibytes) {
  for (const std::uint64_t bytes : {kLimit - 1, kLimit, kLimit + 8}) {
    const auto ranks = static_cast<std::uint64_t>(world().size());
    std::vector<std::byte> local(bytes), full(bytes * ranks);
    fill(local, world().rank());
    world().all_gather_start(local, full)->wait();
    for (std::uint64_t r = 0; r < ranks; ++r) expect(std::span(full).subspan(r * bytes, bytes), static_cast<int>(r));
  }
  const std::uint64_t piece = kLimit + 8;
  std::vector<std::byte> send(piece * 2);
  for (int to = 0; to < 2; ++to)
    fill(std::span(send).subspan(static_cast<std::uint64_t>(to) * piece, piece), world().rank() * 2 + to);
  std::vector<std::byte> receive(piece * 2);
  world().exchange_start(send, receive)->wait();
  for (int from = 0; from < 2; ++from)
    expect(std::span(receive).subspan(static_cast<std::uint64_t>(from) * piece, piece), from * 2 + world().rank());
}

TEST(CaseA30, BroadcastAndFileOfAnEmbedding) {
  std::vector<std::byte> data(kEmbedding);
  if (world().rank() == 0) fill(data, 0);
  world().broadcast(data, 0);
  expect(data, 0);
  SharedScratch scratch;
  on_rank_0([&] {
    io::write_safetensors(scratch / "big.safetensors", {{"embedding", Dtype::kF32, {128256, 8192}, data}}, {});
  });
  std::memset(data.data(), 0, data.size());
  io::SafetensorsFile(scratch / "big.safetensors").read("embedding", 0, data);
  expect(data, 0);
}

}  // namespace
}  // namespace shardtune::testing
