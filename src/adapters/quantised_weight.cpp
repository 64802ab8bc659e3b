#include "quantised_weight.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/quant/dequantise.h"

namespace shardtune::adapters {
namespace {

/// Elements below which another thread is not worth its start.
constexpr std::int64_t kElementsOfThread = 1 << 16;

}  // namespace

at::Tensor dequantised(const at::Tensor& packed, const quant::Format& format, std::int64_t out, std::int64_t in,
                       at::ScalarType type) {
  at::Tensor dense = ops::room_for_dequantised(packed, out, in, type);
  if (dense.is_meta()) return dense;
  const quant::RecordLayout layout(format, out, in);
  SHARDTUNE_CHECK(packed.numel() == layout.stored_bytes(), "{} packed bytes, {} expected", packed.numel(),
                  layout.stored_bytes());
  const std::span<const std::byte> records = ops::bytes_of(packed);
  const auto width = static_cast<std::int64_t>(dense.element_size());
  auto* to = static_cast<std::byte*>(dense.mutable_data_ptr());
  const std::int64_t each = layout.bytes_per_record(), elements = layout.elements_per_record();
  at::parallel_for(0, layout.num_records(), std::max<std::int64_t>(1, kElementsOfThread / elements),
                   [&](std::int64_t begin, std::int64_t end) {
                     const quant::RecordRun run{begin, end - begin};
                     quant::dequantise(layout, run, records.subspan(begin * each, (end - begin) * each),
                                       {to + begin * elements * width, ops::dtype_of(type), layout.elements_in(run)});
                   });
  return dense;
}

}  // namespace shardtune::adapters
