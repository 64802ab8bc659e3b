// What each kind of optimizer takes, by the ledger: one matrix of 4096 x 4096 and a norm, on shapes alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardtune/comm/ghost.h"
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/optim/optimizer.h"

namespace shardtune::optim {
namespace {

constexpr std::int64_t kMatrix = 4096 * 4096, kNorm = 4096 - 256;

struct Bytes {
  std::int64_t device = 0, host = 0;
};

Bytes taken(const std::string& optim, HostMemory host = HostMemory::kSameAsDevice, bool embedding = false) {
  ops::install_ledger(c10::DeviceType::Meta);
  std::vector<model::UnitSpec> units(1);
  units[0].add({.name = "w", .shape = {4096, 4096}, .trainable = true, .embedding = embedding});
  units[0].add({.name = "norm", .shape = {kNorm}, .trainable = true, .decay = false});
  const auto communicator = comm::make_ghost_communicator(0, 1, 1);
  comm::Mesh mesh(*communicator);
  fsdp::ShardedModel model(units, {.device = at::kMeta}, mesh);
  const BytesByPurpose before = ledger().live();
  const auto optimizer = make_optimizer({.optim = optim}, model, host);
  const BytesByPurpose after = ledger().live();
  const auto grown = [&](Purpose purpose) {
    return after[static_cast<std::size_t>(purpose)] - before[static_cast<std::size_t>(purpose)];
  };
  return {grown(Purpose::kOptimizer), grown(Purpose::kHostPinned)};
}

TEST(StateBytes, EightBitIsAQuarter) {
  EXPECT_EQ(taken("adamw_torch").device, 8 * (kMatrix + kNorm));
  // Two codes a weight and two absmax for 256 of them: 2.03 bytes. The norm is small: fp32.
  EXPECT_EQ(taken("adamw_bnb_8bit").device, 2 * kMatrix + 8 * kMatrix / 256 + 8 * kNorm);
  EXPECT_NEAR(static_cast<double>(taken("adamw_bnb_8bit").device) / kMatrix, 2.03, 0.005);
  EXPECT_EQ(taken("sgd").device, 0);
}

TEST(StateBytes, AnEmbeddingStaysInFp32) {
  EXPECT_EQ(taken("adamw_bnb_8bit", HostMemory::kSameAsDevice, true).device, 8 * (kMatrix + kNorm));
}

/// On a GPU the state is the host's and what is on its way is bounded: two stretches of 2^20 weights.
TEST(StateBytes, PagedStateIsOnTheHost) {
  const Bytes wide = taken("paged_adamw_32bit", HostMemory::kApart),
              narrow = taken("paged_adamw_8bit", HostMemory::kApart);
  EXPECT_EQ(wide.host, 8 * (kMatrix + kNorm));
  EXPECT_EQ(wide.device, 2 * 8 << 20);
  EXPECT_EQ(narrow.host, taken("adamw_bnb_8bit").device);
  EXPECT_EQ(narrow.device, 2 * (2 + 8.0 / 256) * (1 << 20));
  // On a CPU there is nothing to page.
  EXPECT_EQ(taken("paged_adamw_8bit").device, narrow.host);
  EXPECT_EQ(taken("paged_adamw_8bit").host, 0);
}

}  // namespace
}  // namespace shardtune::optim
