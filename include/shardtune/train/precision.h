#pragma once
#include <c10/core/ScalarType.h>

#include "shardtune/model/config.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// Which type is used where.
struct Precision {
  at::ScalarType compute{};  ///< of activations, and of weights in matrix products
  at::ScalarType base{};  ///< storage of frozen weights: the compute type, in which they would be read anyway
  at::ScalarType trained{};  ///< in which trained weights are gathered; their masters are fp32
  at::ScalarType reduce{};  ///< in which gradients travel
  at::ScalarType result{};  ///< of a fully fine-tuned model that is written
  bool loss_scaling = false;
};

/// From --dtype, --mixed_precision, --reduce_dtype and the type of the model's files. `has_fp16`: the processor computes in
/// half precision. Error(kUsage) for what is not computed here.
Precision choose_precision(const options::RunOptions& options, const model::ModelConfig& config, bool has_fp16);

/// "float32", "bfloat16" or "float16".
const char* type_name(at::ScalarType type);

}  // namespace shardtune::train
