// Shards, gathers and the reduction over ranks, with values that say where they belong.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardtune/core/error.h"
#include "shardtune/fsdp/sharded_model.h"
#include "support/mpi_world.h"

namespace shardtune::testing {
namespace {

using model::Parameter;
using model::UnitSpec;

/// Four units; shapes that no rank count divides, a unit without trained parameters, tensors smaller than the rank count.
std::vector<UnitSpec> odd_units(bool tied) {
  std::vector<UnitSpec> units(4);
  units[0].add({.name = "table", .shape = {7, 3}, .trainable = true});
  units[1].add({.name = "w1", .shape = {5, 7}});
  units[1].add({.name = "a1", .shape = {1, 7}, .trainable = true});
  units[1].add({.name = "b1", .shape = {5, 1}, .trainable = true});
  units[2].add({.name = "w2", .shape = {1}});
  units[3].add({.name = "norm", .shape = {3}, .trainable = true});
  units[3].add({.name = "head", .shape = {7, 3}, .borrowed = tied});
  return units;
}

/// A value that names tensor and element.
float value(std::size_t unit, std::size_t slot, std::int64_t element) {
  return static_cast<float>(static_cast<std::int64_t>(unit) * 10000 + static_cast<std::int64_t>(slot) * 1000 + element);
}

void fill(fsdp::ShardedModel& model) {
  for (std::size_t unit = 0; unit < model.units(); ++unit)
    for (fsdp::FlatShard* shard : {&model.frozen(unit), &model.trained(unit)})
      shard->for_each_range([&](std::size_t slot, std::int64_t begin, std::int64_t end, at::Tensor part) {
        for (std::int64_t i = begin; i < end; ++i) part[i - begin] = value(unit, slot, i);
      });
}

void expect_full(const fsdp::ShardedModel& model, std::size_t unit, const model::UnitTensors& tensors) {
  for (std::size_t slot = 0; slot < tensors.weights.size(); ++slot) {
    const bool borrowed = model.spec(unit).parameters[slot].borrowed;
    const at::Tensor& weight = tensors.weights[slot];
    ASSERT_EQ(weight.sizes().vec(), model.spec(unit).parameters[slot].shape);
    const at::Tensor flat = weight.reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i)
      ASSERT_EQ(flat[i].item<float>(), borrowed ? value(0, 0, i) : value(unit, slot, i))
          << "unit " << unit << " slot " << slot << " element " << i;
  }
}

TEST(ShardedModel, GathersWhatWasSharded) {
  for (const bool tied : {false, true}) {
    comm::Mesh mesh(world());
    fsdp::ShardedModel model(odd_units(tied), {}, mesh);
    fill(model);
    for (std::size_t unit = 0; unit < model.units(); ++unit) {
      if (tied && unit == 3) model.unshard(0);
      model.prefetch(unit);
      model.unshard(unit);
      expect_full(model, unit, model.stage(unit));
      EXPECT_TRUE(model.is_gathered(unit));
      model.reshard(unit);
      if (tied && unit == 3) model.reshard(0);
    }
  }
}

TEST(ShardedModel, TwoLayersMayBeGatheredAndNoMore) {
  std::vector<UnitSpec> units(5);
  for (auto& unit : units) unit.add({.name = "w", .shape = {4}});
  comm::Mesh mesh(world());
  fsdp::ShardedModel model(units, {}, mesh);
  model.unshard(1);
  model.unshard(2);
  if (world().size() > 1) {
    EXPECT_THROW(model.prefetch(3), Error);
  }
  model.reshard(1);
  EXPECT_THROW(model.reshard(1), Error);
}

TEST(ShardedModel, ReducesInRankOrderOverAllRanks) {
  comm::Mesh mesh(world());
  fsdp::ShardedModel model(odd_units(true), {}, mesh);
  const auto rank_sum = static_cast<float>(world().size() * (world().size() + 1) / 2);
  model.clear_gradient_sums();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    model.zero_gradients(1);
    for (const std::size_t slot : {1u, 2u})
      model.stage(1).gradients[slot].fill_(static_cast<float>(world().rank() + 1) * 0.5f);
    EXPECT_FALSE(model.stage(1).gradients[0].defined());
    model.reduce(1);
  }
  const at::Tensor sums = model.reduced_gradient(1);
  model.trained(1).for_each_range_of(sums, [&](std::size_t, std::int64_t, std::int64_t, const at::Tensor& part) {
    EXPECT_TRUE(at::all(part == rank_sum).item<bool>());  // two micro-batches of one half
  });
}

TEST(ShardedModel, TiedTableAddsItsTwoUses) {
  comm::Mesh mesh(world());
  fsdp::ShardedModel model(odd_units(true), {}, mesh);
  model.zero_gradients(3);
  ASSERT_TRUE(model.stage(3).gradients[1].defined());
  model.stage(3).gradients[1].fill_(1.0f);
  model.stage(3).gradients[0].fill_(8.0f);
  model.reduce(3);
  model.reduce(0, 1);
  model.zero_gradients(0);
  model.stage(0).gradients[0].fill_(2.0f);
  model.reduce(0, 0);
  const auto ranks = static_cast<float>(world().size());
  model.trained(0).for_each_range_of(model.reduced_gradient(0),
                                     [&](std::size_t, std::int64_t, std::int64_t, const at::Tensor& part) {
                                       EXPECT_TRUE(at::all(part == 3.0f * ranks).item<bool>());
                                     });
  model.trained(3).for_each_range_of(model.reduced_gradient(3),
                                     [&](std::size_t, std::int64_t, std::int64_t, const at::Tensor& part) {
                                       EXPECT_TRUE(at::all(part == 8.0f * ranks).item<bool>());
                                     });
}

}  // namespace
}  // namespace shardtune::testing
