#include "shardtune/adapters/quantise_weight.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/model/weights.h"
#include "shardtune/quant/dequantise.h"
#include "shardtune/quant/quantise.h"

namespace shardtune::adapters {

using quant::RecordLayout;
using quant::RecordRun;

at::Tensor read_values(const io::SafetensorsFolder& base, const std::string& name, std::int64_t first,
                       std::int64_t count, at::ScalarType type, bool through_half) {
  at::Tensor values = at::empty({count}, at::dtype(type));
  model::read_elements(base, name, first, values);
  if (!through_half) return values;
  values = values.to(at::kHalf);
  if (!ops::all_finite(values))
    fail(ErrorClass::kBadModel,
         "{}: tensor '{}' holds a value beyond the range of float16, through which --use_8bit_quantization takes the "
         "weights; use --use_4bit_quantization",
         base.file_of(name).string(), name);
  return values;
}

void quantise_records(const RecordLayout& layout, RecordRun run, const at::Tensor& values, std::span<float> absmax,
                      std::span<std::byte> records) {
  const std::int64_t each = layout.elements_per_record(), bytes = layout.bytes_per_record();
  const auto width = static_cast<std::int64_t>(values.element_size());
  const auto* from = static_cast<const std::byte*>(values.const_data_ptr());
  at::parallel_for(0, run.count, 1, [&](std::int64_t begin, std::int64_t end) {
    const RecordRun part{run.first + begin, end - begin};
    const quant::ConstElements elements{from + begin * each * width, ops::dtype_of(values.scalar_type()),
                                        layout.elements_in(part)};
    const auto to = records.subspan(begin * bytes, part.count * bytes);
    if (layout.format().four_bit())
      quant::quantise_codes(layout, part, elements,
                            absmax.subspan(layout.blocks_in({run.first, begin}), layout.blocks_in(part)), to);
    else quant::quantise_rows(layout, part, elements, to);
  });
}

float mean_of_scales(std::vector<float>& absmax) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const float mean = at::mean(at::from_blob(absmax.data(), {static_cast<std::int64_t>(absmax.size())})).item<float>();
  at::set_num_threads(threads);
  return mean;
}

at::Tensor dequantise_records(const RecordLayout& layout, RecordRun run, std::span<const std::byte> records,
                              at::ScalarType type) {
  at::Tensor values = at::empty({layout.elements_in(run)}, at::dtype(type));
  const auto width = static_cast<std::int64_t>(values.element_size());
  auto* to = static_cast<std::byte*>(values.mutable_data_ptr());
  const std::int64_t each = layout.elements_per_record(), bytes = layout.bytes_per_record();
  at::parallel_for(0, run.count, 4, [&](std::int64_t begin, std::int64_t end) {
    const RecordRun part{run.first + begin, end - begin};
    quant::dequantise(layout, part, records.subspan(begin * bytes, part.count * bytes),
                      {to + begin * each * width, ops::dtype_of(type), layout.elements_in(part)});
  });
  return values;
}

}  // namespace shardtune::adapters
