#pragma once
#include <string>

namespace shardtune::model {

struct ModelOptions {
  std::string model_name_or_path;  ///< Hugging Face model folder
  std::string dtype = "auto";  ///< auto (as the files) | float32 | bfloat16: storage and compute type of the base
  bool gradient_checkpointing = true;  ///< recompute layers in backward; false keeps every layer's intermediates
};

}  // namespace shardtune::model
