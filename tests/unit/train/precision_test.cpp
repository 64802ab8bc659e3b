// Which type is used where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardtune/core/error.h"
#include "shardtune/train/precision.h"

namespace shardtune::train {
namespace {

Precision chosen(const std::string& dtype, const std::string& mixed, bool lora, Dtype files = Dtype::kBF16) {
  options::RunOptions options;
  options.model.dtype = dtype;
  options.model.mixed_precision = mixed;
  options.adapter.use_peft_lora = lora;
  model::ModelConfig config;
  config.dtype = files;
  return choose_precision(options, config, /*has_fp16=*/true);
}

TEST(Precision, AdaptersHaveATypeOfTheirOwn) {
  options::RunOptions options;
  options.adapter.use_peft_lora = true;
  options.adapter.adapter_dtype = "bfloat16";
  options.model.dtype = "float32";
  EXPECT_EQ(choose_precision(options, {}, true).trained, at::kBFloat16);
  EXPECT_EQ(choose_precision(options, {}, true).compute, at::kFloat);
}

TEST(Precision, TypesOfLoraAndOfFullTraining) {
  struct Row {
    const char *dtype, *mixed;
    bool lora;
    at::ScalarType compute, trained, result;
  };
  for (const Row& row : {Row{"auto", "no", true, at::kBFloat16, at::kFloat, at::kBFloat16},
                         Row{"float32", "no", false, at::kFloat, at::kFloat, at::kFloat},
                         Row{"float32", "bf16", true, at::kBFloat16, at::kFloat, at::kFloat},
                         Row{"float32", "bf16", false, at::kBFloat16, at::kBFloat16, at::kFloat},
                         Row{"bfloat16", "fp16", false, at::kHalf, at::kHalf, at::kBFloat16}}) {
    const Precision found = chosen(row.dtype, row.mixed, row.lora);
    EXPECT_EQ(found.compute, row.compute) << row.dtype << " " << row.mixed;
    EXPECT_EQ(found.base, row.compute) << row.dtype << " " << row.mixed;
    EXPECT_EQ(found.trained, row.trained) << row.dtype << " " << row.mixed;
    EXPECT_EQ(found.result, row.result) << row.dtype << " " << row.mixed;
    EXPECT_EQ(found.reduce, at::kFloat);
    EXPECT_EQ(found.loss_scaling, std::string(row.mixed) == "fp16");
  }
}

TEST(Precision, HalfPrecisionFilesNeedALossScale) {
  EXPECT_EQ(chosen("auto", "fp16", true, Dtype::kF16).base, at::kHalf);
  EXPECT_EQ(chosen("auto", "bf16", true, Dtype::kF16).base, at::kBFloat16);
  try {
    chosen("auto", "no", true, Dtype::kF16);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--mixed_precision fp16"));
  }
}

TEST(Precision, Fp16IsRefusedWhereTheProcessorLacksIt) {
  options::RunOptions options;
  options.model.mixed_precision = "fp16";
  try {
    choose_precision(options, {}, /*has_fp16=*/false);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("give bf16 or no"));
  }
}

}  // namespace
}  // namespace shardtune::train
