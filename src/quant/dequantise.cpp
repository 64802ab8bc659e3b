#include "shardtune/quant/dequantise.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "expand.h"
#include "int8_row.h"
#include "record_access.h"
#include "reference.h"
#include "shardtune/core/error.h"
#include "shardtune/core/simd_level.h"
#include "typed.h"

namespace shardtune::quant {
namespace {

constexpr std::int64_t kMaxBlocks = kRecordElements / 64;
/// Results of more bytes than this leave a core's caches before anybody reads them.
constexpr std::int64_t kStreamBytes = std::int64_t{16} << 20;

/// products[block][code] = table[code] * absmax[block], rounded.
template <typename T>
struct Products {
  [[gnu::always_inline]] static void run(const float* table, const float* absmax, std::int64_t blocks, T* products) {
    for (std::int64_t block = 0; block < blocks; ++block)
      for (std::int64_t code = 0; code < kCodes; ++code)
        products[block * kCodes + code] = narrowed<T>(table[code] * absmax[block]);
  }
};

template <typename T>
struct Row {
  [[gnu::always_inline]] static void run(const std::int8_t* codes, std::int64_t count, float absmax, T* out) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = narrowed<T>(int8_value(codes[i], absmax));
  }
};

/// The same for a finite absmax, with which no product is NaN: rounding then needs no look at the value.
struct FiniteBf16Row {
  [[gnu::always_inline]] static void run(const std::int8_t* codes, std::int64_t count, float absmax, Bf16* out) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t bits = bits_of(int8_value(codes[i], absmax));
      out[i].bits = static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
    }
  }
};

template <typename T>
void run_row(const std::int8_t* codes, std::int64_t count, float absmax, T* out) {
  if constexpr (std::is_same_v<T, Bf16>)
    if (std::isfinite(absmax)) return simd::run<FiniteBf16Row>(codes, count, absmax, out);
  simd::run<Row<T>>(codes, count, absmax, out);
}

/// What has no loop of its own goes past the caches by way of a buffer that the nearest one holds: the loop is the same for every type and instruction set.
template <typename T>
void dequantise_row(Stores stores, const std::byte* record, std::int64_t count, T* out) {
  const auto* codes = reinterpret_cast<const std::int8_t*>(record + kHeaderBytes);
  const float absmax = read_header(record).absmax;
  if constexpr (!std::is_same_v<T, Fp16>) {
    const std::int64_t done = int8_row(codes, count, absmax, stores, out);
    codes += done, out += done, count -= done;
  }
  if (stores == Stores::kNormal) return run_row(codes, count, absmax, out);
  constexpr std::int64_t kPiece = 2048;
  alignas(64) std::array<T, kPiece> piece;
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t elements = std::min(kPiece, count - first);
    run_row(codes + first, elements, absmax, piece.data());
    store_past_the_caches(piece.data(), static_cast<std::size_t>(elements) * sizeof(T), out + first);
  }
}

template <typename T>
void dequantise_four_bit(const RecordLayout& layout, Stores stores, const std::byte* record, std::int64_t count,
                         T* out) {
  const std::int64_t block = layout.format().block_size, blocks = (count + block - 1) / block;
  std::array<float, kMaxBlocks> absmax;
  alignas(64) std::array<T, kMaxBlocks * kCodes> products;
  read_scales(layout, record, blocks, absmax.data());
  simd::run<Products<T>>(static_cast<const float*>(four_bit_table(layout.format().kind).values),
                         static_cast<const float*>(absmax.data()), blocks, products.data());
  const auto* packed = reinterpret_cast<const std::uint8_t*>(record + layout.packed_offset());
  const std::int64_t chunks = count / kExpandChunk;
  expand(sizeof(T), stores, products.data(), packed, chunks, block / kExpandChunk, out);
  for (std::int64_t i = chunks * kExpandChunk; i < count; ++i)
    out[i] = products[static_cast<std::size_t>(i / block * kCodes + packed_code(packed, i))];
}

}  // namespace

void dequantise(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records, const Elements& out) {
  SHARDTUNE_CHECK(out.count == layout.elements_in(run), "room for {} of {} elements", out.count,
                  layout.elements_in(run));
  SHARDTUNE_CHECK(std::ssize(records) == run.count * layout.bytes_per_record(), "{} bytes for {} records",
                  records.size(), run.count);
  if (simd::level() == simd::Level::kPlain) return reference::dequantise(layout, run, records, out);
  const bool large = out.count * static_cast<std::int64_t>(dtype_bytes(out.dtype)) > kStreamBytes;
  const Stores stores = large ? Stores::kPastTheCaches : Stores::kNormal;
  with_pointer(out, [&]<typename T>(T* to) {
    for_each_record(layout, run, records.data(), [&](const std::byte* record, std::int64_t first, std::int64_t count) {
      if (layout.format().four_bit()) return dequantise_four_bit(layout, stores, record, count, to + first);
      dequantise_row(stores, record, count, to + first);
    });
  });
  if (large) finish_stores();
}

}  // namespace shardtune::quant
