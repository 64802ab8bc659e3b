#include "shardtune/quant/format.h"

#include <bit>

#include "shardtune/core/error.h"

namespace shardtune::quant {

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNf4: return "nf4";
    case Kind::kFp4: return "fp4";
    case Kind::kInt8: return "int8";
  }
  fail(ErrorClass::kUsage, "quantisation format: kind is {}, but must be nf4, fp4 or int8", static_cast<int>(kind));
}

void check_format(const Format& format) {
  const std::string_view kind = kind_name(format.kind);
  const std::int64_t block = format.block_size;
  if (!format.four_bit()) {
    if (format.double_quantisation)
      fail(ErrorClass::kUsage, "quantisation format: double_quantisation is on, but {} has no absmax of blocks", kind);
    if (block != 0)
      fail(ErrorClass::kUsage, "quantisation format: block_size is {}, but the blocks of {} are rows: 0", block, kind);
    return;
  }
  if (block < 64 || block > 4096 || !std::has_single_bit(static_cast<std::uint64_t>(block)))
    fail(ErrorClass::kUsage, "quantisation format: block_size is {}, but {} takes a power of two from 64 to 4096",
         block, kind);
}

}  // namespace shardtune::quant
