#include "shardtune/train/precision.h"

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::train {
namespace {

/// What --dtype asks for.
at::ScalarType stored_type(const options::RunOptions& options, const model::ModelConfig& config) {
  if (options.model.dtype == "float32") return at::kFloat;
  if (options.model.dtype == "bfloat16") return at::kBFloat16;
  // auto: as the files. Half precision has too little range to train in without loss scaling.
  if (config.dtype == Dtype::kF16 && options.model.mixed_precision == "no")
    fail(ErrorClass::kUsage,
         "--dtype auto: the model's files are float16; give --dtype float32 or bfloat16, or --mixed_precision fp16, "
         "which "
         "scales the loss");
  return ops::scalar_type(config.dtype);
}

at::ScalarType compute_type(const std::string& mixed, at::ScalarType stored, bool has_fp16) {
  if (mixed == "bf16") return at::kBFloat16;
  if (mixed == "no") return stored;
  if (!has_fp16)
    fail(ErrorClass::kUsage,
         "--mixed_precision fp16: this processor has no instructions for half precision (F16C); give bf16 or no");
  return at::kHalf;
}

}  // namespace

Precision choose_precision(const options::RunOptions& options, const model::ModelConfig& config, bool has_fp16) {
  Precision out;
  out.result = stored_type(options, config);
  out.compute = out.base = compute_type(options.model.mixed_precision, out.result, has_fp16);
  // Adapters have a type of their own; a fully trained model computes in the compute type.
  const auto adapter = options.adapter.adapter_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  out.trained = options.adapter.use_peft_lora ? adapter : out.compute;
  out.reduce = options.fsdp.reduce_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  out.loss_scaling = options.model.mixed_precision == "fp16";
  if (const std::string& wish = options.quant.bnb_4bit_compute_dtype; wish != "auto" && wish != type_name(out.compute))
    fail(ErrorClass::kUsage,
         "--bnb_4bit_compute_dtype {}: this run computes in {} (--dtype, --mixed_precision); give the same type, or "
         "auto",
         wish, type_name(out.compute));
  return out;
}

const char* type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return "float32";
    case at::kBFloat16: return "bfloat16";
    case at::kHalf: return "float16";
    default: fail(ErrorClass::kInternal, "no name for tensor type {}", at::toString(type));
  }
}

}  // namespace shardtune::train
