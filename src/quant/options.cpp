#include "shardtune/quant/options.h"

#include <fmt/format.h>

#include <bit>

#include "shardtune/core/error.h"

namespace shardtune::quant {

std::optional<Format> format_of(const QuantOptions& options) {
  if (options.use_8bit_quantization) return kInt8Format;
  if (!options.use_4bit_quantization) return std::nullopt;
  const Format format{.kind = options.bnb_4bit_quant_type == "fp4" ? Kind::kFp4 : Kind::kNf4,
                      .double_quantisation = options.use_nested_quant,
                      .block_size = options.bnb_4bit_blocksize};
  if (!std::has_single_bit(static_cast<std::uint64_t>(format.block_size)))
    fail(ErrorClass::kUsage, "--bnb_4bit_blocksize {}: a power of two from 64 to 4096 is wanted", format.block_size);
  check_format(format);
  return format;
}

std::string describe(const Format& format) {
  if (!format.four_bit()) return fmt::format("{} by rows", kind_name(format.kind));
  return fmt::format("{} in blocks of {}{}", kind_name(format.kind), format.block_size,
                     format.double_quantisation ? ", double quantisation" : "");
}

}  // namespace shardtune::quant
