#pragma once
// What the tests of the quant module share: reference tensors, levels, random values.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quant/element_types.h"
#include "shardtune/core/simd_level.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/quant/elements.h"
#include "shardtune/quant/quantise.h"
#include "shardtune/quant/records.h"
#include "support/scratch.h"

namespace shardtune::quant::testing {

/// One tensor of a reference file, as bytes.
struct Stored {
  Dtype dtype{};
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::int64_t count() const { return static_cast<std::int64_t>(bytes.size() / dtype_bytes(dtype)); }
  ConstElements elements() const { return {bytes.data(), dtype, count()}; }
  template <typename T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
};

/// A file of tests/parity/data/quant.
class Reference {
 public:
  explicit Reference(const std::string& name)
      : file_(shardtune::testing::data_folder() / "quant" / (name + ".safetensors")) {}

  bool has(const std::string& name) const { return file_.tensors().contains(name); }
  Stored operator[](const std::string& name) const {
    const io::TensorInfo& info = file_.tensor(name);
    Stored stored{info.dtype, info.shape, std::vector<std::byte>(info.bytes)};
    file_.read(name, 0, stored.bytes);
    return stored;
  }
  /// Names that end so, without the end.
  std::vector<std::string> stems(const std::string& end) const {
    std::vector<std::string> found;
    for (const auto& [name, info] : file_.tensors())
      if (name.ends_with(end)) found.push_back(name.substr(0, name.size() - end.size()));
    return found;
  }

 private:
  io::SafetensorsFile file_;
};

/// The level inside the scope.
class AtLevel {
 public:
  explicit AtLevel(simd::Level level) : before_(std::exchange(simd::level(), level)) {}
  ~AtLevel() { simd::level() = before_; }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;

 private:
  simd::Level before_;
};

/// Those of this processor, the plain one first.
inline std::vector<simd::Level> levels() {
  std::vector<simd::Level> all{simd::Level::kPlain};
  for (const auto level : {simd::Level::kAvx2, simd::Level::kAvx512})
    if (level <= simd::best_level()) all.push_back(level);
  return all;
}

inline std::vector<std::byte> room_for(const RecordLayout& layout, RecordRun run) {
  // Not zero, so that bytes which nobody writes are seen.
  return std::vector<std::byte>(static_cast<std::size_t>(run.count * layout.bytes_per_record()), std::byte{0xA5});
}

/// All steps for a whole 4-bit matrix.
inline std::vector<std::byte> quantised(const RecordLayout& layout, const ConstElements& values, float offset) {
  std::vector<std::byte> records = room_for(layout, layout.all_records());
  std::vector<float> absmax(static_cast<std::size_t>(layout.num_blocks()));
  quantise_codes(layout, layout.all_records(), values, absmax, records);
  write_scales(layout, layout.all_records(), absmax, offset, records);
  return records;
}

/// The absmax of all blocks.
inline std::vector<float> absmax_of(const RecordLayout& layout, const ConstElements& values) {
  std::vector<std::byte> records = room_for(layout, layout.all_records());
  std::vector<float> absmax(static_cast<std::size_t>(layout.num_blocks()));
  quantise_codes(layout, layout.all_records(), values, absmax, records);
  return absmax;
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Finite values of a type as raw bits of every exponent: many subnormals, zeros, huge ones, and runs of ordinary ones.
inline std::vector<std::byte> wild_values(Dtype dtype, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  const std::size_t size = dtype_bytes(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    const std::uint32_t region = static_cast<std::uint32_t>(i / 97) % 5;
    if (dtype == Dtype::kF16) {
      bits = bits >> 16;
      if ((bits & 0x7C00U) == 0x7C00U) bits &= 0x83FFU;  // infinity and NaN become subnormal
    } else {
      if (region == 1) bits &= 0x807FFFFFU;  // subnormal
      if (region == 2) bits = (bits & 0x81FFFFFFU) | 0x3C000000U;  // 2^-7 to 2^0
      if (region == 3) bits |= 0x7E000000U;  // huge
      if ((bits & 0x7F800000U) == 0x7F800000U) bits &= 0xBFFFFFFFU;
      if (dtype == Dtype::kBF16) bits >>= 16;
    }
    if (region == 4 && i % 3 != 0) bits = 0;
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

/// Ordinary bf16 values, and no two blocks alike: the range grows along the matrix and varies from block to block.
inline std::vector<std::byte> ordinary_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Bf16> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto range = static_cast<float>(i) / static_cast<float>(count) + 0.1F * static_cast<float>(i / 64 * 37 % 23);
    values.push_back(narrowed<Bf16>((static_cast<float>(random() % 20001U) / 10000.0F - 1.0F) * range));
  }
  return bytes_of(values);
}

}  // namespace shardtune::quant::testing
