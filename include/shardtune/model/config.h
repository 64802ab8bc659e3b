#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shardtune/core/dtype.h"

namespace shardtune::model {

/// Rotary embedding as config.json asks for it.
struct RotaryConfig {
  double theta = 10000.0;
  std::string type = "default";  ///< default | llama3
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_length = 0;
};

/// How the layers' linears lie in the files of a model that bitsandbytes has quantised.
struct StoredQuantisation {
  bool four_bit = true;  ///< else int8
  std::string type = "nf4";  ///< nf4 | fp4; of four_bit
  bool nested = false;  ///< double quantisation; of four_bit
};

/// Shapes of a Llama decoder. Letters: D hidden_size, F intermediate_size, H attention heads, K key/value heads, E head width.
struct ModelConfig {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, max_positions = 0;
  std::int64_t stored_vocab_size =
      0;  ///< rows of table and head in the files: vocab_size unless the vocabulary was grown
  double norm_epsilon = 1e-6;
  /// Row of the embedding that gets no gradient as an input (pad_token_id, as Transformers has it); -1: none.
  std::int64_t padding_index = -1;
  bool tied_embeddings = false;
  Dtype dtype = Dtype::kF32;  ///< of the files, as config.json states it
  RotaryConfig rotary;
  std::optional<StoredQuantisation> quantisation;  ///< of the files; nothing: plain weights
};

/// Reads config.json in the old (`rope_theta`, `rope_scaling`, `torch_dtype`) and the new spelling (`rope_parameters`,
/// `dtype`). Everything that this program would compute otherwise than Transformers (other architecture, biases, other
/// activation, unknown rope type) is refused by name: Error(kBadModel).
ModelConfig read_config(const std::filesystem::path& folder);

/// The same model with table and head of `rows` rows (--resize_token_embeddings). Error(kUsage) when that is fewer.
void grow_vocabulary(ModelConfig& config, std::int64_t rows);

/// Inverse frequencies [E/2] in fp32, with Llama 3's three bands when asked for.
std::vector<float> rotary_inverse_frequencies(const RotaryConfig& config, std::int64_t head_dim);

}  // namespace shardtune::model
