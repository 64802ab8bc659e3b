#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "shardtune/quant/format.h"

namespace shardtune::quant {

/// How the frozen linears of the layers are stored; the names are those of the options.
struct QuantOptions {
  bool use_4bit_quantization = false;
  bool use_8bit_quantization = false;
  std::string bnb_4bit_quant_type = "nf4";  ///< nf4 | fp4
  bool use_nested_quant = false;
  std::int64_t bnb_4bit_blocksize = 64;  ///< elements with one scale
  std::string bnb_4bit_compute_dtype = "auto";  ///< auto | float32 | bfloat16 | float16
  std::string bnb_4bit_quant_storage_dtype = "uint8";  ///< without effect here
  std::string quantised_cache{};  ///< folder, "" for none
};

/// What the options ask for; nothing for a base that is not quantised. Not both widths: the options' check refuses that.
/// Error(kUsage) for an impossible block size.
std::optional<Format> format_of(const QuantOptions& options);

/// "nf4 in blocks of 64, double quantisation": for messages, and what a checkpoint is compared by.
std::string describe(const Format& format);

}  // namespace shardtune::quant
