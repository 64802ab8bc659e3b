#pragma once
#include <cstdint>
#include <string>

namespace shardtune::model {

struct ModelOptions {
  std::string model_name_or_path;  ///< Hugging Face model folder
  std::string dtype = "auto";  ///< auto (as the files) | float32 | bfloat16: storage and compute type of the base
  std::int64_t resize_token_embeddings = 0;  ///< rows of embedding and head; 0: as the model has them
  std::string mixed_precision = "no";  ///< no (compute in dtype) | bf16 | fp16 (with a loss scale)
  std::string blas = "auto";  ///< auto | mkl | openblas
  bool gradient_checkpointing = true;  ///< when given: true computes all layers again in backward, false keeps them
  bool use_reentrant = false;  ///< taken and without effect: nothing is recorded that could be entered again
  std::string activation_policy;  ///< "", recompute, keep, every_N, last_K, auto
  std::int64_t ffn_chunk_tokens = 2048;  ///< tokens that a layer takes at once
  std::int64_t table_pieces =
      0;  ///< in which a frozen embedding table and head are gathered; 0: from the model's shape
  double memory_budget_gib = 0;  ///< of a rank's resident memory, for auto; 0: what the node has
};

}  // namespace shardtune::model
