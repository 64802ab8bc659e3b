// Reading parts of tensors with conversion, and the check of the files against the model.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "shardtune/core/error.h"
#include "shardtune/model/weights.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

std::vector<model::UnitSpec> one_matrix() {
  std::vector<model::UnitSpec> units(1);
  units[0].add({.name = "w", .shape = {3, 4}});
  return units;
}

std::string check_error(const std::vector<io::TensorView>& tensors, bool tied = false) {
  Scratch scratch;
  io::write_safetensors(scratch / "model.safetensors", tensors, {});
  try {
    model::check_weights(io::SafetensorsFolder(scratch.path()), one_matrix(), tied);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadModel);
    return error.what();
  }
  return "no error";
}

TEST(Weights, PartsAreReadAndConverted) {
  Scratch scratch;
  const at::Tensor values = at::arange(12, at::kFloat).view({3, 4}) / 8;  // exact in bf16 and fp16
  for (const auto& [type, dtype] :
       {std::pair{at::kFloat, Dtype::kF32}, {at::kBFloat16, Dtype::kBF16}, {at::kHalf, Dtype::kF16}}) {
    const at::Tensor stored = values.to(type);
    io::write_safetensors(scratch / "model.safetensors", {{"w", dtype, {3, 4}, bytes_of(stored)}}, {});
    const io::SafetensorsFolder folder(scratch.path());
    for (const auto target : {at::kFloat, at::kBFloat16}) {
      at::Tensor part = at::zeros({5}, target);
      model::read_elements(folder, "w", 6, part);
      EXPECT_TRUE(at::equal(part.to(at::kFloat), values.view({-1}).narrow(0, 6, 5)));
    }
  }
}

TEST(Weights, ValuesThatAreNotFiniteAreRefused) {
  Scratch scratch;
  at::Tensor values = at::zeros({12}, at::kFloat);
  values[7] = std::numeric_limits<float>::quiet_NaN();
  io::write_safetensors(scratch / "model.safetensors", {{"w", Dtype::kF32, {3, 4}, bytes_of(values)}}, {});
  at::Tensor part = at::zeros({6}, at::kFloat);
  const io::SafetensorsFolder folder(scratch.path());
  model::read_elements(folder, "w", 0, part);  // the part before it is fine
  try {
    model::read_elements(folder, "w", 6, part);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("'w'"), ::testing::HasSubstr("element 7")));
  }
}

TEST(Weights, FilesAreCheckedAgainstTheModel) {
  const at::Tensor twelve = at::zeros({12}), sixteen = at::zeros({16}), ids = at::zeros({12}, at::kLong);
  EXPECT_EQ(check_error({{"w", Dtype::kF32, {3, 4}, bytes_of(twelve)}}), "no error");
  EXPECT_THAT(check_error({{"v", Dtype::kF32, {3, 4}, bytes_of(twelve)}}), ::testing::HasSubstr("no tensor 'w'"));
  EXPECT_THAT(check_error({{"w", Dtype::kF32, {4, 4}, bytes_of(sixteen)}}),
              ::testing::AllOf(::testing::HasSubstr("[4, 4]"), ::testing::HasSubstr("[3, 4]")));
  EXPECT_THAT(check_error({{"w", Dtype::kI64, {3, 4}, bytes_of(ids)}}), ::testing::HasSubstr("I64"));
  EXPECT_THAT(
      check_error({{"w", Dtype::kF32, {3, 4}, bytes_of(twelve)}, {"extra", Dtype::kF32, {12}, bytes_of(twelve)}}),
      ::testing::HasSubstr("'extra'"));
}

TEST(Weights, RedundantTensorsAreKnown) {
  const at::Tensor twelve = at::zeros({12});
  const io::TensorView w{"w", Dtype::kF32, {3, 4}, bytes_of(twelve)},
      head{"lm_head.weight", Dtype::kF32, {12}, bytes_of(twelve)},
      rotary{"model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::kF32, {12}, bytes_of(twelve)};
  EXPECT_EQ(check_error({w, rotary}), "no error");
  EXPECT_EQ(check_error({w, head}, /*tied=*/true), "no error");
  EXPECT_THAT(check_error({w, head}, /*tied=*/false), ::testing::HasSubstr("'lm_head.weight'"));
}

}  // namespace
}  // namespace shardtune::testing
