#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace shardtune {

/// Element types that model files hold. Names are those of the safetensors format ("F32", "BF16", ...).
enum class Dtype { kBool, kU8, kI8, kI16, kU16, kI32, kU32, kI64, kU64, kF8E4M3, kF8E5M2, kF16, kBF16, kF32, kF64 };

/// Bytes of one element.
std::size_t dtype_bytes(Dtype dtype);

/// The safetensors name.
std::string_view dtype_name(Dtype dtype);

/// From the safetensors name; nothing when unknown.
std::optional<Dtype> dtype_from_name(std::string_view name);

}  // namespace shardtune
