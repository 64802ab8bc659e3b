#pragma once
#include <cstdint>

namespace shardtune::quant {

/// Elements that expand() works on at a time.
constexpr std::int64_t kExpandChunk = 64;
/// Entries of a block's table of products.
constexpr std::int64_t kCodes = 16;

/// out[i] = products[block of i][code of i], entries of 2 or 4 bytes: what dequantising comes to once the products
/// table[code] * absmax of a block are made, because there are 16 of them for 64 elements or more. For vector levels only.
void expand16(const void* products, const void* packed, std::int64_t chunks, std::int64_t chunks_per_block, void* out);
void expand32(const void* products, const void* packed, std::int64_t chunks, std::int64_t chunks_per_block, void* out);

}  // namespace shardtune::quant
