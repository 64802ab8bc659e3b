// The tensors of an adapter folder against those that the model and adapter_config.json ask for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardtune/adapters/peft_folder.h"
#include "shardtune/core/error.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// What is said of one tensor of this type and shape where the model asks for [2, 3].
std::string check(Dtype dtype, std::vector<std::int64_t> shape) {
  std::vector<model::UnitSpec> units(1);
  units[0].add({.name = "m.lora_A.weight", .shape = {2, 3}, .trainable = true, .initial = model::Initial::kLoraA});
  std::size_t bytes = dtype_bytes(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  const std::vector<std::byte> data(bytes);
  Scratch scratch;
  io::write_safetensors(scratch / "adapter_model.safetensors",
                        {{"base_model.model.m.lora_A.weight", dtype, shape, data}}, {});
  try {
    adapters::check_adapter_weights(io::SafetensorsFolder(scratch.path(), "adapter_model"), units);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadModel);
    return error.what();
  }
  return "no error";
}

TEST(AdapterWeights, TypesThatHoldWeights) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) EXPECT_EQ(check(dtype, {2, 3}), "no error");
  for (const Dtype dtype : {Dtype::kBool, Dtype::kU8, Dtype::kI8, Dtype::kI16, Dtype::kI32, Dtype::kI64, Dtype::kF8E4M3,
                            Dtype::kF8E5M2, Dtype::kF64})
    EXPECT_THAT(check(dtype, {2, 3}),
                AllOf(HasSubstr("adapter_model.safetensors"),
                      HasSubstr(fmt::format("base_model.model.m.lora_A.weight: {} and not F32, F16 or BF16",
                                            dtype_name(dtype)))));
}

TEST(AdapterWeights, Shapes) {
  EXPECT_THAT(check(Dtype::kF32, {3, 2}), HasSubstr("base_model.model.m.lora_A.weight: [3, 2] and not [2, 3]"));
}

}  // namespace
}  // namespace shardtune::testing
