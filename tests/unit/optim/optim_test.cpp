// AdamW, clipping and schedules against their formulas in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardtune/comm/self.h"
#include "shardtune/optim/gradient_norm.h"
#include "shardtune/optim/optimizer.h"
#include "shardtune/optim/schedule.h"

namespace shardtune::optim {
namespace {

std::vector<model::UnitSpec> two_tensors() {
  std::vector<model::UnitSpec> units(3);
  units[1].add({.name = "w", .shape = {3}, .trainable = true});
  units[1].add({.name = "norm", .shape = {2}, .trainable = true, .decay = false});
  return units;
}

/// Decoupled weight decay (Loshchilov and Hutter) with bias correction, as the paper writes it.
struct Reference {
  double p, m = 0, v = 0;
  void step(double g, double lr, double decay, int t, const OptimOptions& o) {
    p -= lr * decay * p;
    m = o.adam_beta1 * m + (1 - o.adam_beta1) * g;
    v = o.adam_beta2 * v + (1 - o.adam_beta2) * g * g;
    p -= lr * (m / (1 - std::pow(o.adam_beta1, t))) / (std::sqrt(v / (1 - std::pow(o.adam_beta2, t))) + o.adam_epsilon);
  }
};

TEST(AdamW, FollowsTheFormulaAndSparesNormsFromDecay) {
  OptimOptions options;
  options.weight_decay = 0.5;
  const auto communicator = comm::make_self_communicator();
  comm::Mesh mesh(*communicator);
  fsdp::ShardedModel model(two_tensors(), {}, mesh);
  std::vector<Reference> expected;
  model.trained(1).for_each_range([&](std::size_t slot, std::int64_t begin, std::int64_t, at::Tensor part) {
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      const double start = 0.25 * static_cast<double>(begin + i + 1) + static_cast<double>(slot);
      part[i] = start;
      expected.push_back({start});
    }
  });
  const auto adamw = make_optimizer(options, model);
  for (int t = 1; t <= 5; ++t) {
    at::Tensor gradient = at::zeros_like(model.trained(1).local());
    std::size_t index = 0;
    model.trained(1).for_each_range_of(gradient, [&](std::size_t slot, std::int64_t, std::int64_t, at::Tensor part) {
      for (std::int64_t i = 0; i < part.numel(); ++i, ++index) {
        const double g = std::sin(static_cast<double>(index) + t);
        part[i] = g;
        expected[index].step(g * 0.5, 1e-2 * t, slot == 0 ? 0.5 : 0.0, t, options);
      }
    });
    std::vector<at::Tensor> gradients(3);
    gradients[1] = gradient;
    adamw->step(gradients, 0.5f, 1e-2 * t);
  }
  std::size_t index = 0;
  model.trained(1).for_each_range([&](std::size_t, std::int64_t, std::int64_t, const at::Tensor& part) {
    for (std::int64_t i = 0; i < part.numel(); ++i, ++index)
      EXPECT_NEAR(part[i].item<double>(), expected[index].p, 1e-6);
  });
  EXPECT_EQ(index, 5u);
}

TEST(Clip, Coefficient) {
  EXPECT_FLOAT_EQ(clip_coefficient(4.0, 1.0), 1.0f / (4.0f + 1e-6f));
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(1e9, 0.0), 1.0f);  // off
}

TEST(Clip, SquaredNormIsExactInFp64) {
  const std::vector<at::Tensor> gradients = {at::full({4}, 3e-4f), {}, at::full({2}, 1e4f)};
  const double a = 3e-4f, b = 1e4f;
  EXPECT_DOUBLE_EQ(local_squared_norm(gradients), 4 * a * a + 2 * b * b);
}

TEST(Schedule, WarmupBelowOneIsAShareRoundedUp) {
  EXPECT_EQ(warmup_step_count(0.03, 100), 3);
  EXPECT_EQ(warmup_step_count(0.03, 101), 4);
  EXPECT_EQ(warmup_step_count(5, 100), 5);
  EXPECT_EQ(warmup_step_count(0, 100), 0);
}

TEST(Schedule, ConstantKinds) {
  OptimOptions options;
  options.learning_rate = 2.0;
  options.warmup_steps = 4;
  options.lr_scheduler_type = "constant_with_warmup";
  EXPECT_EQ(learning_rate_at(options, 0, 10), 0.0);
  EXPECT_EQ(learning_rate_at(options, 2, 10), 1.0);
  EXPECT_EQ(learning_rate_at(options, 9, 10), 2.0);
  options.lr_scheduler_type = "constant";
  EXPECT_EQ(learning_rate_at(options, 0, 10), 2.0);
}

}  // namespace
}  // namespace shardtune::optim
