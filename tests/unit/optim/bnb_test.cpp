// Every kind of optimizer against the bits of bitsandbytes and PyTorch: ten steps with given gradients on three tensors, of
// which the last is too small for 8-bit state.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

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
  explicit TenSteps(const std::string& optim) : mesh_(*communicator_), model_(units(), {}, mesh_) {
    each(model_.trained(0).local(), [&](std::size_t i, at::Tensor part) {
      fill(part, "AdamW8bit." + std::string(kTensors[i].name) + ".fp32.start");
    });
    optimizer_ = make_optimizer({.optim = optim, .weight_decay = 0.01}, model_);
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
