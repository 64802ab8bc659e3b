#include "shardtune/quant/cuda.h"

#include "kernels.h"
#include "shardtune/core/error.h"
#include "shardtune/quant/blockwise.h"
#include "table_structs.h"
#include "typed.h"

namespace shardtune::quant::cuda {
namespace {

/// A device's limit of blocks of threads in a launch.
constexpr std::int64_t kMaxRecords = 2147483647;

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail(ErrorClass::kBadNode, "{}: CUDA says {}", what, cudaGetErrorString(code));
}

void check_sizes(std::size_t values, std::size_t codes, std::size_t absmax) {
  SHARDTUNE_CHECK(codes == values && absmax == (values + kStateBlock - 1) / kStateBlock,
                  "{} codes and {} absmax for {} values", codes, absmax, values);
}

}  // namespace

void dequantise(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records, const Elements& out,
                CUstream_st* stream) {
  SHARDTUNE_CHECK(out.count == layout.elements_in(run), "room for {} of {} elements", out.count,
                  layout.elements_in(run));
  SHARDTUNE_CHECK(std::ssize(records) == run.count * layout.bytes_per_record() && run.count <= kMaxRecords,
                  "{} bytes for {} records", records.size(), run.count);
  if (out.count == 0) return;
  const Format& format = layout.format();
  const DeviceRecords where{reinterpret_cast<const std::uint8_t*>(records.data()),
                            run.count,
                            layout.bytes_per_record(),
                            layout.packed_offset(),
                            layout.elements_per_record(),
                            out.count,
                            format.block_size,
                            format.double_quantisation};
  with_pointer(out, [&](auto* to) {
    check(format.four_bit()
              ? launch_four_bit(where, four_bit_table(format.kind), eight_bit_table(StateCode::kSigned), to, stream)
              : launch_int8(where, to, stream),
          "dequantising");
  });
}

void quantise_blockwise(StateCode code, std::span<const float> values, std::span<float> absmax,
                        std::span<std::uint8_t> codes, CUstream_st* stream) {
  check_sizes(values.size(), codes.size(), absmax.size());
  if (values.empty()) return;
  check(launch_quantise_states(eight_bit_table(code), values.data(), std::ssize(values), absmax.data(), codes.data(),
                               stream),
        "quantising states");
}

void dequantise_blockwise(StateCode code, std::span<const std::uint8_t> codes, std::span<const float> absmax,
                          std::span<float> values, CUstream_st* stream) {
  check_sizes(values.size(), codes.size(), absmax.size());
  if (values.empty()) return;
  check(launch_dequantise_states(eight_bit_table(code), codes.data(), absmax.data(), std::ssize(values), values.data(),
                                 stream),
        "dequantising states");
}

}  // namespace shardtune::quant::cuda
