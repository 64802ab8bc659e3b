#include "shardtune/core/dtype.h"

#include <array>

namespace shardtune {
namespace {

struct Entry {
  Dtype dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<Entry, 15> kEntries{{{Dtype::kBool, "BOOL", 1},
                                          {Dtype::kU8, "U8", 1},
                                          {Dtype::kI8, "I8", 1},
                                          {Dtype::kI16, "I16", 2},
                                          {Dtype::kU16, "U16", 2},
                                          {Dtype::kI32, "I32", 4},
                                          {Dtype::kU32, "U32", 4},
                                          {Dtype::kI64, "I64", 8},
                                          {Dtype::kU64, "U64", 8},
                                          {Dtype::kF8E4M3, "F8_E4M3", 1},
                                          {Dtype::kF8E5M2, "F8_E5M2", 1},
                                          {Dtype::kF16, "F16", 2},
                                          {Dtype::kBF16, "BF16", 2},
                                          {Dtype::kF32, "F32", 4},
                                          {Dtype::kF64, "F64", 8}}};

}  // namespace

std::size_t dtype_bytes(Dtype dtype) { return kEntries.at(static_cast<std::size_t>(dtype)).bytes; }

std::string_view dtype_name(Dtype dtype) { return kEntries.at(static_cast<std::size_t>(dtype)).name; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const auto& entry : kEntries)
    if (entry.name == name) return entry.dtype;
  return std::nullopt;
}

}  // namespace shardtune
