#include "merge_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "adapter_tensors.h"
#include "shardtune/adapters/quantise_weight.h"
#include "shardtune/adapters/stored_quantised.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/model/weights.h"
#include "shardtune/quant/quantise.h"

namespace shardtune::exporting {
namespace {

using quant::RecordLayout;
using quant::RecordRun;

/// Elements that are quantised at once while the scales are looked for.
constexpr std::int64_t kAtOnce = 1 << 20;

/// Rows [first, first + count) of a matrix [.., columns] in fp32.
at::Tensor read_rows(const io::SafetensorsFolder& folder, const std::string& name, std::int64_t columns,
                     std::int64_t first, std::int64_t count, at::ScalarType type = at::kFloat) {
  at::Tensor rows = at::empty({count, columns}, at::dtype(type));
  model::read_elements(folder, name, first * columns, rows);
  return rows;
}

/// Columns of a matrix [rows, width] in fp32.
at::Tensor read_columns(const io::SafetensorsFolder& folder, const std::string& name, std::int64_t rows,
                        std::int64_t width, std::int64_t first, std::int64_t count) {
  at::Tensor columns = at::empty({rows, count}, at::dtype(at::kFloat));
  for (std::int64_t row = 0; row < rows; ++row) model::read_elements(folder, name, row * width + first, columns[row]);
  return columns;
}

RecordRun records_of(const RecordLayout& layout, const RowBlock& block) {
  const std::int64_t each = layout.elements_per_record();
  const std::int64_t first = block.first * layout.columns() / each;
  const std::int64_t end = ((block.first + block.count) * layout.columns() + each - 1) / each;
  return {first, end - first};
}

/// The factor A of an adapter as it enters the product. Weighted, the scale goes into A, as add_weighted_adapter() has it.
at::Tensor weighted(at::Tensor a, const LowRankPart& part) {
  return part.adapter->weight ? a.mul_(*part.adapter->weight).mul_(part.scaling) : a;
}

}  // namespace

void MergedRows::begin(const RowBlock& block) {
  if (current_ == block.tensor) return;
  current_ = block.tensor;
  shared_.reset();
  absmax_.clear();
  const ResultTensor& tensor = plan_.tensors[block.tensor];
  std::vector<at::Tensor> factors;
  for (const LowRankPart& part : tensor.parts) {
    const ModuleTensors names = module_tensors(part.module);
    const io::SafetensorsFolder& files = part.adapter->weights;
    // The embedding's B [D, r] or a linear's A [r, in]: what every block of rows needs.
    if (tensor.table) factors.push_back(read_rows(files, names.b, part.rank, 0, tensor.columns()));
    else factors.push_back(weighted(read_rows(files, names.a, tensor.columns(), 0, part.rank), part));
  }
  if (!factors.empty()) shared_ = factors.size() == 1 ? factors.front() : at::cat(factors, tensor.table ? 1 : 0);
}

/// scale * B A of the block's rows, [count, columns] in fp32.
at::Tensor MergedRows::change(const ResultTensor& tensor, const RowBlock& block) {
  std::vector<at::Tensor> factors;
  for (const LowRankPart& part : tensor.parts) {
    const ModuleTensors names = module_tensors(part.module);
    const io::SafetensorsFolder& files = part.adapter->weights;
    if (tensor.table)
      factors.push_back(
          weighted(read_columns(files, names.a, part.rank, tensor.rows(), block.first, block.count), part));
    else factors.push_back(read_rows(files, names.b, part.rank, block.first, block.count));
  }
  const at::Tensor own = factors.size() == 1 ? factors.front() : at::cat(factors, tensor.table ? 0 : 1);
  const at::Tensor product = tensor.table ? at::mm(shared_, own).t() : at::mm(own, shared_);
  const LowRankPart& first = tensor.parts.front();
  return first.adapter->weight ? product : product * first.scaling;
}

/// With double quantisation every scale depends on the mean over the matrix: it is read once before its first block.
void MergedRows::find_scales(const ResultTensor& tensor, const RecordLayout& layout) {
  if (!absmax_.empty()) return;
  absmax_.resize(static_cast<std::size_t>(layout.num_blocks()));
  if (!layout.format().double_quantisation) return;
  const std::int64_t step = std::max<std::int64_t>(1, kAtOnce / layout.elements_per_record());
  std::vector<std::byte> records;
  for (std::int64_t done = 0; done < layout.num_records(); done += step) {
    const RecordRun run{done, std::min(step, layout.num_records() - done)};
    const at::Tensor values =
        adapters::read_values(*sources_.base, tensor.base.name, run.first * layout.elements_per_record(),
                              layout.elements_in(run), sources_.form.type, /*through_half=*/false);
    records.resize(static_cast<std::size_t>(run.count * layout.bytes_per_record()));
    adapters::quantise_records(layout, run, values,
                               std::span(absmax_).subspan(layout.blocks_in({0, done}), layout.blocks_in(run)), records);
  }
  offset_ = adapters::mean_of_scales(absmax_);
}

at::Tensor MergedRows::quantised_rows(const ResultTensor& tensor, const RowBlock& block) {
  const BaseForm& form = sources_.form;
  const RecordLayout layout(*form.format, tensor.rows(), tensor.columns());
  const RecordRun run = records_of(layout, block);
  const std::int64_t start = run.first * layout.elements_per_record();
  std::vector<std::byte> records;
  if (form.stored) {
    records = adapters::read_stored(*sources_.base, tensor.base, layout, run);
  } else {
    const bool four_bit = form.format->four_bit();
    const at::Tensor values = adapters::read_values(*sources_.base, tensor.base.name, start, layout.elements_in(run),
                                                    form.type, /*through_half=*/!four_bit);
    records.resize(static_cast<std::size_t>(run.count * layout.bytes_per_record()));
    std::span<float> absmax;
    if (four_bit) {
      find_scales(tensor, layout);
      absmax = std::span(absmax_).subspan(layout.blocks_in({0, run.first}), layout.blocks_in(run));
    }
    adapters::quantise_records(layout, run, values, absmax, records);
    if (four_bit) quant::write_scales(layout, run, absmax_, form.format->double_quantisation ? offset_ : 0, records);
  }
  const at::Tensor values = adapters::dequantise_records(layout, run, records, form.compute_type);
  return values.narrow(0, block.first * tensor.columns() - start, block.count * tensor.columns())
      .view({block.count, tensor.columns()});
}

at::Tensor MergedRows::base_rows(const ResultTensor& tensor, const RowBlock& block) {
  if (tensor.saved != nullptr)
    return read_rows(tensor.saved->weights, tensor.saved_name, tensor.columns(), block.first, block.count);
  at::Tensor rows = tensor.quantised ? quantised_rows(tensor, block)
                                     : read_rows(*sources_.base, tensor.base.name, tensor.columns(), block.first,
                                                 block.count, ops::scalar_type(sources_.config.dtype));
  for (const LowRankPart& part : tensor.parts) {
    const std::string copy = module_tensors(part.module).base;
    if (!part.adapter->weights.contains(copy)) continue;
    const at::Tensor theirs = read_rows(part.adapter->weights, copy, tensor.columns(), block.first, block.count);
    if (!at::equal(theirs.to(rows.scalar_type()), rows))
      fail(ErrorClass::kBadModel,
           "{}: its copy of the base's weight, '{}', differs from '{}' of --model_name_or_path; give the model of the "
           "run",
           part.adapter->folder.string(), copy, tensor.base.name);
  }
  return rows;
}

namespace {

/// Brings in those trained rows of tokens that lie in the block, rounded once.
void put_token_rows(const ResultTensor& tensor, const RowBlock& block, at::Tensor& rows) {
  for (const TokenRows& trained : tensor.token_rows)
    for (std::size_t k = 0; k < trained.tokens.size(); ++k) {
      const std::int64_t row = trained.tokens[k] - block.first;
      if (row < 0 || row >= block.count) continue;
      const auto number = static_cast<std::int64_t>(k);
      rows[row].copy_(read_rows(trained.adapter->weights, trained.name, tensor.columns(), number, 1)[0]);
    }
}

}  // namespace

at::Tensor MergedRows::make(const RowBlock& block) {
  begin(block);
  const ResultTensor& tensor = plan_.tensors[block.tensor];
  at::Tensor rows = base_rows(tensor, block);
  if (!tensor.parts.empty()) {
    rows = rows.to(at::kFloat).add(change(tensor, block));
    const LowRankPart& part = tensor.parts.front();
    if (part.adapter->lora.dora) {
      const at::Tensor magnitude =
          read_rows(part.adapter->weights, module_tensors(part.module).magnitude, 1, block.first, block.count);
      const at::Tensor norms = at::linalg_vector_norm(rows, 2, 1);
      // A row of zeros stays one, as in training; PEFT divides by zero there.
      const at::Tensor scale = (magnitude.view({-1}) / norms).masked_fill_(at::eq(norms, 0), 0);
      rows = scale.view({-1, 1}) * rows;
    }
  }
  rows = rows.to(plan_.type).contiguous();
  put_token_rows(tensor, block, rows);
  const bool by_weights = !tensor.parts.empty() && tensor.parts.front().adapter->weight;
  if (!ops::all_finite(rows))
    fail(ErrorClass::kBadModel, "'{}' would hold a value that is not finite in {}; check the adapter{}{}", tensor.name,
         torch_type_name(plan_.type), by_weights ? " and --adapter_weights" : "",
         plan_.type == at::kFloat ? "" : ", or give --dtype float32");
  return rows;
}

std::uint64_t working_bytes(const MergeSources& sources, const MergePlan& plan) {
  std::uint64_t most = 0;
  for (const ResultTensor& tensor : plan.tensors) {
    const std::int64_t rows = std::min(tensor.rows(), 2 * rows_of_block(tensor.columns()) - 1);
    // Base, its bytes from the file, change, sum and scaled sum, result; each in fp32 at most.
    std::uint64_t bytes = static_cast<std::uint64_t>(rows * tensor.columns()) * 4 * 6;
    std::int64_t rank = 0;
    for (const LowRankPart& part : tensor.parts) rank += part.rank;
    // Factors of several adapters are read one by one and then put together.
    bytes += static_cast<std::uint64_t>(rank * (rows + tensor.columns())) * 4 * (tensor.parts.size() > 1 ? 2 : 1);
    if (tensor.quantised && !sources.form.stored) bytes += tensor.elements() / 64 * 4 + (8U << 20);
    bytes += 32U << 20;  // what is read before it is converted, and its check
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace shardtune::exporting
