// Every kind of optimizer against the bits of bitsandbytes and PyTorch: ten steps with given gradients on three tensors, of
// which the last is too small for 8-bit state.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "optim/bnb_adamw.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/ops.h"
#include "shardtune/optim/optimizer.h"
#include "unit/quant/support.h"

namespace shardtune::optim {
namespace {

using quant::testing::AtLevel;
using quant::testing::Reference;

struct Tensor {
  const char* name;
  std::vector<std::int64_t> shape;
};
const std::array<Tensor, 3> kTensors = {Tensor{"0_64x128", {64, 128}}, {"1_100x77", {100, 77}}, {"2_40x40", {40, 40}}};

template <typename T>
std::vector<T> values_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return {whole.const_data_ptr<T>(), whole.const_data_ptr<T>() + whole.numel()};
}

/// The three tensors as one unit, on one rank.
class TenSteps {
 public:
  explicit TenSteps(const std::string& optim) : TenSteps() {
    optimizer_ = make_optimizer({.optim = optim, .weight_decay = 0.01}, model_);
  }
  explicit TenSteps(const BnbKind& kind) : TenSteps() {
    optimizer_ = std::make_unique<BnbAdamW>(kind, OptimOptions{.weight_decay = 0.01}, model_);
  }

  void step() {
    ++step_;
    const at::Tensor gradient = at::zeros_like(model_.trained(0).local());
    each(gradient, [&](std::size_t i, at::Tensor part) { fill(part, fmt::format("grad.{}.{}", i, step_)); });
    optimizer_->step({gradient}, 1.0f, 1e-2);
  }

  void expect_parameters(const std::string& peer) {
    const Reference expected("optimizer_parameters");
    each(model_.trained(0).local(), [&](std::size_t i, const at::Tensor& part) {
      const std::string name = peer + "." + kTensors[i].name;
      EXPECT_EQ(values_of<float>(part), expected[name].as<float>()) << name;
    });
  }

  void expect_state(const std::string& role, std::int64_t first, std::int64_t count, const std::string& name) const {
    std::size_t index = 0;
    while (optimizer_->roles().at(index).name != role) ++index;
    const at::Tensor found = optimizer_->state(index, 0).narrow(0, first, count);
    if (optimizer_->roles()[index].dtype == Dtype::kU8)
      EXPECT_EQ(values_of<std::uint8_t>(found), reference_[name].as<std::uint8_t>()) << name;
    else EXPECT_EQ(values_of<float>(found), reference_[name].as<float>()) << name;
  }

  int steps() const { return step_; }
  Optimizer& optimizer() { return *optimizer_; }

 private:
  TenSteps() : mesh_(*communicator_), model_(units(), {}, mesh_) {
    each(model_.trained(0).local(), [&](std::size_t i, at::Tensor part) {
      fill(part, "AdamW8bit." + std::string(kTensors[i].name) + ".fp32.start");
    });
  }
  static std::vector<model::UnitSpec> units() {
    std::vector<model::UnitSpec> units(1);
    for (const Tensor& one : kTensors) units[0].add({.name = one.name, .shape = one.shape, .trainable = true});
    return units;
  }
  template <typename F>
  void each(const at::Tensor& flat, F action) {
    model_.trained(0).for_each_range_of(
        flat, [&](std::size_t slot, std::int64_t, std::int64_t, at::Tensor part) { action(slot, std::move(part)); });
  }
  void fill(const at::Tensor& part, const std::string& name) const {
    const std::vector<float> values = reference_[name].as<float>();
    ASSERT_EQ(std::ssize(values), part.numel()) << name;
    std::ranges::copy(values, part.mutable_data_ptr<float>());
  }

  Reference reference_{"adamw_8bit"};
  std::unique_ptr<comm::Communicator> communicator_ = comm::make_self_communicator();
  comm::Mesh mesh_;
  fsdp::ShardedModel model_;
  std::unique_ptr<Optimizer> optimizer_;
  int step_ = 0;
};

void expect_states(const TenSteps& run) {
  const auto name = [&](std::size_t tensor, const char* role) {
    return fmt::format("AdamW8bit.{}.fp32.step{}.{}", kTensors[tensor].name, run.steps(), role);
  };
  for (const auto* role : {"state1", "state2"}) {
    run.expect_state(role, 0, 8192, name(0, role));
    run.expect_state(role, 8192, 7700, name(1, role));
  }
  for (const auto* role : {"absmax1", "absmax2"}) {
    run.expect_state(role, 0, 32, name(0, role));
    run.expect_state(role, 32, 31, name(1, role));
  }
  run.expect_state("exp_avg", 0, 1600, name(2, "state1"));
  run.expect_state("exp_avg_sq", 0, 1600, name(2, "state2"));
}

class EightBit : public ::testing::TestWithParam<const char*> {};

TEST_P(EightBit, StatesAndParametersAreThoseOfBitsandbytes) {
  for (const auto level : quant::testing::levels()) {
    const AtLevel at(level);
    SCOPED_TRACE(fmt::format("level {}", static_cast<int>(level)));
    TenSteps run(GetParam());
    for (int step = 1; step <= 10; ++step) {
      run.step();
      if (step == 1 || step == 2 || step == 10) expect_states(run);
    }
    run.expect_parameters("AdamW8bit");
    EXPECT_EQ(run.optimizer().steps_taken(), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EightBit, ::testing::Values("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"),
                         [](const auto& test) { return std::string(test.param); });

class OtherKinds : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(OtherKinds, ParametersAreThoseOfThePeer) {
  const auto& [optim, peer] = GetParam();
  for (const auto level : quant::testing::levels()) {
    const AtLevel at(level);
    TenSteps run(optim);
    for (int step = 1; step <= 10; ++step) run.step();
    run.expect_parameters(peer);
  }
}

INSTANTIATE_TEST_SUITE_P(Peers, OtherKinds,
                         ::testing::Values(std::pair("paged_adamw_32bit", "PagedAdamW32bit"), std::pair("sgd", "SGD")),
                         [](const auto& test) { return std::string(test.param.first); });

/// State that waits in the host's memory and comes by stretches: of one tensor, of a piece of one (1,024 and 2,560 weights:
/// 2,080 and 5,200 bytes), of several, and of all three.
class Paged : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(Paged, BitsAreThoseOfStateThatStays) {
  TenSteps narrow(BnbKind{.name = "paged_adamw_8bit", .eight_bit = true, .paged = true, .staged_weights = GetParam()}),
      wide(BnbKind{.name = "paged_adamw_32bit", .paged = true, .staged_weights = GetParam()});
  for (int step = 1; step <= 10; ++step) {
    narrow.step();
    wide.step();
    if (step == 1 || step == 2 || step == 10) expect_states(narrow);
  }
  narrow.expect_parameters("AdamW8bit");
  wide.expect_parameters("PagedAdamW32bit");
}

INSTANTIATE_TEST_SUITE_P(Weights, Paged, ::testing::Values(1024, 2560, 16384, 1 << 20));

/// Every weight once, in order, with its state; no slot overflows; what does not fit is cut between blocks.
TEST(Stretches, HoldEverythingWithinTheirBytes) {
  const std::vector<StatePart> parts = {{{nullptr, 0, 7700}, true, 0, 0},
                                        {{nullptr, 7936, 300}, false, 0, 0},
                                        {{nullptr, 8448, 1000}, true, 7700, 31},
                                        {{nullptr, 9472, 5000}, false, 300, 0}};
  for (const std::int64_t bytes : {2048, 2080, 5000, 20000, 1'000'000}) {
    const std::vector<Stretch> stretches = stretches_of(3, parts, bytes);
    std::size_t index = 0;
    std::int64_t done = 0;
    for (const Stretch& stretch : stretches) {
      EXPECT_EQ(stretch.unit, 3U);
      std::int64_t taken = 0;
      for (std::size_t role = 0; role < kRoles; ++role)
        taken += stretch.ranges[role].count * (role == kState1 || role == kState2 ? 1 : 4);
      EXPECT_LE(taken, bytes);
      for (const StatePart& piece : stretch.parts) {
        const StatePart& whole = parts.at(index);
        EXPECT_EQ(piece.part.at, whole.part.at + done);
        EXPECT_EQ(piece.at, whole.at + done);
        EXPECT_EQ(done % 256, 0);
        EXPECT_EQ(piece.block, whole.block + (whole.eight_bit ? done / 256 : 0));
        const StateRange& range = stretch.ranges[whole.eight_bit ? kState1 : kExpAvg];
        EXPECT_LE(range.first, piece.at);
        EXPECT_GE(range.first + range.count, piece.at + piece.part.count);
        done += piece.part.count;
        if (done == whole.part.count) {
          ++index;
          done = 0;
        }
      }
    }
    EXPECT_EQ(index, parts.size()) << bytes;
  }
  EXPECT_EQ(stretches_of(0, parts, 1'000'000).size(), 1U);
  EXPECT_TRUE(stretches_of(0, {}, 4096).empty());
}

/// The name under which a checkpoint remembers the kind, and its state.
TEST(Optimizer, NamesAndRoles) {
  const auto roles = [](const std::string& optim) {
    TenSteps run(optim);
    std::string text = run.optimizer().name() + ":";
    for (const StateRole& role : run.optimizer().roles())
      text += fmt::format(" {} {}", role.name, dtype_name(role.dtype));
    return text;
  };
  EXPECT_EQ(roles("adamw_torch"), "adamw_torch: exp_avg F32 exp_avg_sq F32");
  EXPECT_EQ(roles("adamw_torch_fused"), roles("adamw_torch"));
  const std::string eight_bit = " exp_avg F32 exp_avg_sq F32 state1 U8 absmax1 F32 state2 U8 absmax2 F32";
  EXPECT_EQ(roles("adamw_bnb_8bit"), "adamw_bnb_8bit:" + eight_bit);
  EXPECT_EQ(roles("adamw_8bit"), "adamw_bnb_8bit:" + eight_bit);
  EXPECT_EQ(roles("paged_adamw_8bit"), "paged_adamw_8bit:" + eight_bit);
  EXPECT_EQ(roles("paged_adamw_32bit"), "paged_adamw_32bit: exp_avg F32 exp_avg_sq F32");
  EXPECT_EQ(roles("sgd"), "sgd:");
}

}  // namespace
}  // namespace shardtune::optim
