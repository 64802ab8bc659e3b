#pragma once
#include <cstddef>
#include <cstdint>

namespace shardtune::quant {

/// Elements that expand() works on at a time.
constexpr std::int64_t kExpandChunk = 64;
/// Entries of a block's table of products.
constexpr std::int64_t kCodes = 16;

/// Where results go. Past the caches: a line that is overwritten as a whole is not read first, which is worth a third of the
/// traffic once the results outgrow the caches anyway. Needs `out` at a multiple of 64 bytes, else it is as kNormal.
enum class Stores { kNormal, kPastTheCaches };

/// out[i] = products[block of i][code of i], entries of `entry_bytes` (2 or 4): what dequantising comes to once the products
/// table[code] * absmax of a block are made, because there are 16 of them for 64 elements or more. For vector levels only.
void expand(std::size_t entry_bytes, Stores stores, const void* products, const void* packed, std::int64_t chunks,
            std::int64_t chunks_per_block, void* out);

/// Copies `bytes` that a core's nearest cache holds past the caches to `out`, where that is a multiple of 64 bytes; else as memcpy
/// does.
void store_past_the_caches(const void* from, std::size_t bytes, void* out);

/// After stores past the caches, before another thread is told that the results are there.
void finish_stores();

}  // namespace shardtune::quant
