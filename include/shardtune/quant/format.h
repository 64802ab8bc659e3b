#pragma once
#include <cstdint>
#include <string_view>

namespace shardtune::quant {

/// How one weight is coded. NF4: Dettmers et al., QLoRA (2023), appendix E; FP4 and int8: the formats of bitsandbytes.
enum class Kind { kNf4, kFp4, kInt8 };

/// "nf4", "fp4" or "int8".
std::string_view kind_name(Kind kind);

/// What a quantised matrix is stored as.
struct Format {
  Kind kind = Kind::kNf4;
  /// The absmax of the blocks are themselves stored in 8 bits, 256 of them to a nested absmax; 4-bit kinds only.
  bool double_quantisation = true;
  /// Elements that share one absmax: a power of two from 64 to 4096. 0 for int8, whose blocks are the rows of the matrix.
  std::int64_t block_size = 64;

  bool four_bit() const { return kind != Kind::kInt8; }
  bool operator==(const Format&) const = default;
};

/// int8 by rows.
inline constexpr Format kInt8Format{Kind::kInt8, false, 0};

/// Throws Error(kUsage) that names the field which no such format can have.
void check_format(const Format& format);

}  // namespace shardtune::quant
