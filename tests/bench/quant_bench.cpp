// Quantising and dequantising on one thread, beside a copy: bytes_per_second counts bytes read plus bytes written.
//
//   ninja -C build quant_bench && build/tests/quant_bench
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "shardtune/core/simd_level.h"
#include "shardtune/quant/blockwise.h"
#include "shardtune/quant/dequantise.h"
#include "shardtune/quant/quantise.h"

namespace {

using namespace shardtune;
using namespace shardtune::quant;

/// A matrix of Llama 70B's feed-forward block: 235 million elements, which no cache holds.
constexpr std::int64_t kRows = 28672, kColumns = 8192;
/// One that stays in a core's own cache, for the kernels alone.
constexpr std::int64_t kSmallRows = 16;

/// Memory as LibTorch gives it: at a multiple of 64 bytes, and written once, so that its pages are there.
class Room {
 public:
  explicit Room(std::size_t bytes) : bytes_(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), size_(bytes) {
    std::memset(bytes_, 1, bytes);
  }
  ~Room() { std::free(bytes_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  void* data() const { return bytes_; }
  std::size_t size() const { return size_; }

 private:
  void* bytes_;
  std::size_t size_;
};

/// bf16 from -2 to 2, with fractions of every kind.
std::vector<std::uint16_t> values(std::int64_t count) {
  std::vector<std::uint16_t> all(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (auto& value : all) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<std::uint16_t>((state >> 16 & 0x80FFU) | 0x3F00U);
  }
  return all;
}

std::vector<std::byte> records_of(const RecordLayout& layout, const std::vector<std::uint16_t>& from) {
  std::vector<std::byte> records(static_cast<std::size_t>(layout.stored_bytes()));
  const ConstElements elements{from.data(), Dtype::kBF16, layout.elements()};
  if (!layout.format().four_bit()) {
    quantise_rows(layout, layout.all_records(), elements, records);
    return records;
  }
  std::vector<float> absmax(static_cast<std::size_t>(layout.num_blocks()));
  quantise_codes(layout, layout.all_records(), elements, absmax, records);
  write_scales(layout, layout.all_records(), absmax, layout.format().double_quantisation ? 1.5F : 0.0F, records);
  return records;
}

void count_bytes(benchmark::State& state, std::int64_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * bytes);
}

/// memcpy of as many bytes as dequantising to bf16 writes.
void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0) * kColumns) * 2;
  const Room from(bytes), to(bytes);
  for ([[maybe_unused]] auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, static_cast<std::int64_t>(bytes) * 2);
}

/// STREAM's "scale": a loop of ordinary loads and stores.
void stream_scale(benchmark::State& state) {
  const std::int64_t count = state.range(0) * kColumns / 2;
  const Room from(static_cast<std::size_t>(count) * 4), to(static_cast<std::size_t>(count) * 4);
  for ([[maybe_unused]] auto _ : state) {
    const auto* read = static_cast<const float*>(from.data());
    auto* write = static_cast<float*>(to.data());
    for (std::int64_t i = 0; i < count; ++i) write[i] = 3.0F * read[i];
    benchmark::ClobberMemory();
  }
  count_bytes(state, count * 8);
}

void dequantise_to(benchmark::State& state, const Format& format, Dtype dtype, simd::Level level) {
  if (level > simd::best_level()) return state.SkipWithError("this processor has no such level");
  const RecordLayout layout(format, state.range(0), kColumns);
  const auto records = records_of(layout, values(layout.elements()));
  const Room out(static_cast<std::size_t>(layout.elements()) * dtype_bytes(dtype));
  simd::level() = level;
  for ([[maybe_unused]] auto _ : state) {
    dequantise(layout, records, {out.data(), dtype, layout.elements()});
    benchmark::ClobberMemory();
  }
  simd::level() = simd::best_level();
  count_bytes(state, static_cast<std::int64_t>(records.size() + out.size()));
}

/// bytes_per_second of input alone.
void quantise_from(benchmark::State& state, const Format& format, simd::Level level) {
  if (level > simd::best_level()) return state.SkipWithError("this processor has no such level");
  const RecordLayout layout(format, state.range(0), kColumns);
  const auto from = values(layout.elements());
  simd::level() = level;
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(records_of(layout, from).data());
  simd::level() = simd::best_level();
  count_bytes(state, layout.elements() * 2);
}

/// bytes_per_second of fp32 values alone.
void states(benchmark::State& state, bool back) {
  const std::int64_t count = state.range(0) * kColumns;
  std::vector<float> moments(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < moments.size(); ++i) moments[i] = static_cast<float>(i % 1009) - 500.0F;
  std::vector<float> absmax(static_cast<std::size_t>(count / kStateBlock));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  quantise_blockwise(StateCode::kSigned, moments, absmax, codes);
  for ([[maybe_unused]] auto _ : state) {
    if (back) dequantise_blockwise(StateCode::kSigned, codes, absmax, moments);
    else quantise_blockwise(StateCode::kSigned, moments, absmax, codes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, count * 4);
}

constexpr Format kNested{Kind::kNf4, true, 64}, kFp4{Kind::kFp4, true, 64};
constexpr auto kPlain = simd::Level::kPlain, kAvx2 = simd::Level::kAvx2, kAvx512 = simd::Level::kAvx512;

#define BOTH_SIZES Arg(kRows)->Arg(kSmallRows)->Unit(benchmark::kMillisecond)
BENCHMARK(copy)->BOTH_SIZES;
BENCHMARK(stream_scale)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, nf4_bf16_avx512, kNested, Dtype::kBF16, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, nf4_bf16_avx2, kNested, Dtype::kBF16, kAvx2)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, nf4_bf16_plain, kNested, Dtype::kBF16, kPlain)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, nf4_fp32_avx512, kNested, Dtype::kF32, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, nf4_fp32_avx2, kNested, Dtype::kF32, kAvx2)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, nf4_fp16_avx512, kNested, Dtype::kF16, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, int8_bf16_avx512, kInt8Format, Dtype::kBF16, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, int8_bf16_avx2, kInt8Format, Dtype::kBF16, kAvx2)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, int8_fp32_avx512, kInt8Format, Dtype::kF32, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(dequantise_to, int8_fp32_avx2, kInt8Format, Dtype::kF32, kAvx2)->BOTH_SIZES;
BENCHMARK_CAPTURE(quantise_from, nf4_avx512, kNested, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(quantise_from, nf4_avx2, kNested, kAvx2)->BOTH_SIZES;
BENCHMARK_CAPTURE(quantise_from, nf4_plain, kNested, kPlain)->Arg(kSmallRows)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(quantise_from, fp4_avx512, kFp4, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(quantise_from, int8_avx512, kInt8Format, kAvx512)->BOTH_SIZES;
BENCHMARK_CAPTURE(states, quantise, false)->BOTH_SIZES;
BENCHMARK_CAPTURE(states, dequantise, true)->BOTH_SIZES;

}  // namespace

BENCHMARK_MAIN();
