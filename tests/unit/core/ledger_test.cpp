// The books of tensor memory. Bytes by hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "shardtune/core/ledger.h"
#include "shardtune/core/ledger_allocator.h"

namespace shardtune {
namespace {

std::int64_t of(const BytesByPurpose& bytes, Purpose purpose) { return bytes[static_cast<std::size_t>(purpose)]; }

TEST(Ledger, PeakAndWhatLivesThen) {
  Ledger books;
  books.add(Purpose::kWeightShards, 100);
  books.set_phase("forward layer 3");
  books.add(Purpose::kWorkspace, 50);
  books.add(Purpose::kWorkspace, -50);
  books.set_phase("backward layer 3");
  books.add(Purpose::kGradients, 40);
  const LedgerPeak peak = books.peak();
  EXPECT_EQ(peak.bytes, 150);
  EXPECT_EQ(peak.phase, "forward layer 3");
  EXPECT_EQ(of(peak.at_peak, Purpose::kWorkspace), 50);
  EXPECT_EQ(of(peak.at_peak, Purpose::kGradients), 0);
  EXPECT_EQ(of(peak.own, Purpose::kGradients), 40);
}

TEST(Ledger, WindowBeginsFromWhatLives) {
  Ledger books;
  books.add(Purpose::kWorkspace, 500);
  books.add(Purpose::kWorkspace, -400);
  books.start_window();
  EXPECT_EQ(books.peak().bytes, 100);
  books.add(Purpose::kLoss, 7);
  EXPECT_EQ(books.peak().bytes, 107);
  EXPECT_EQ(of(books.peak().own, Purpose::kWorkspace), 100);
}

TEST(Ledger, HostIsApart) {
  Ledger books;
  books.add(Purpose::kHostShared, 1000);
  books.add(Purpose::kLoss, 1);
  EXPECT_EQ(books.peak().bytes, 1);
  EXPECT_EQ(books.peak().host_bytes, 1000);
}

TEST(Ledger, MovedBytesChangeTheirPurposeOnly) {
  Ledger books;
  books.add(Purpose::kWorkspace, 30);
  books.move(Purpose::kWorkspace, Purpose::kKeptActivations, 30);
  EXPECT_EQ(of(books.live(), Purpose::kWorkspace), 0);
  EXPECT_EQ(of(books.live(), Purpose::kKeptActivations), 30);
  EXPECT_EQ(books.peak().bytes, 30);
}

class Allocations : public testing::TestWithParam<c10::DeviceType> {
 protected:
  static void SetUpTestSuite() {
    ops::install_ledger(c10::DeviceType::CPU);
    ops::install_ledger(c10::DeviceType::Meta);
  }
  std::int64_t live(Purpose purpose) const { return of(ledger().live(), purpose); }
};

TEST_P(Allocations, PurposeRidesInTheAllocation) {
  const std::int64_t before = live(Purpose::kLoss);
  at::Tensor tensor;
  {
    const LedgerScope scope(Purpose::kLoss);
    tensor = at::empty({10, 10}, at::TensorOptions().device(GetParam()).dtype(at::kFloat));
  }
  EXPECT_EQ(live(Purpose::kLoss) - before, 400);
  const at::Tensor view = tensor.narrow(0, 0, 5);
  tensor.reset();
  EXPECT_EQ(live(Purpose::kLoss) - before, 400);  // the view holds all of it
  const LedgerScope elsewhere(Purpose::kOptimizer);
  const_cast<at::Tensor&>(view).reset();
  EXPECT_EQ(live(Purpose::kLoss), before);
}

TEST_P(Allocations, BookedUnderAnotherPurpose) {
  const std::int64_t before = live(Purpose::kKeptActivations);
  {
    const at::Tensor tensor = at::empty({25}, at::TensorOptions().device(GetParam()).dtype(at::kDouble));
    ops::book(tensor, Purpose::kKeptActivations);
    EXPECT_EQ(live(Purpose::kKeptActivations) - before, 200);
  }
  EXPECT_EQ(live(Purpose::kKeptActivations), before);
}

TEST_P(Allocations, OperatorsOfTheLibraryAreCounted) {
  const LedgerScope scope(Purpose::kWorkspace);
  const at::Tensor a = at::empty({8, 4}, at::TensorOptions().device(GetParam()).dtype(at::kFloat));
  ledger().start_window();
  const std::int64_t before = live(Purpose::kWorkspace);
  const at::Tensor product = at::mm(a, a.t());
  EXPECT_EQ(live(Purpose::kWorkspace) - before, 8 * 8 * 4);
}

INSTANTIATE_TEST_SUITE_P(Devices, Allocations, testing::Values(c10::DeviceType::CPU, c10::DeviceType::Meta));

}  // namespace
}  // namespace shardtune
