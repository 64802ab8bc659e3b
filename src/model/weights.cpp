#include "shardtune/model/weights.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::model {
namespace {

constexpr std::int64_t kBufferBytes = 16 << 20;

bool is_weight_dtype(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16; }

void check_finite(const at::Tensor& values, const io::SafetensorsFolder& folder, const std::string& name,
                  std::int64_t first) {
  const at::Tensor finite = at::isfinite(values);
  if (finite.all().item<bool>()) return;
  const auto bad = at::argmin(finite.to(at::kByte)).item<std::int64_t>();
  fail(ErrorClass::kBadModel, "{}: tensor '{}' holds a value that is not finite at element {}",
       folder.file_of(name).string(), name, first + bad);
}

bool is_redundant(const std::string& name, bool tied) {
  return name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
}

}  // namespace

void read_elements(const io::SafetensorsFolder& folder, const std::string& name, std::int64_t first, at::Tensor out) {
  const io::TensorInfo& info = folder.tensor(name);
  const auto width = static_cast<std::int64_t>(dtype_bytes(info.dtype));
  const std::int64_t total = out.numel(), piece = kBufferBytes / width;
  at::Tensor flat = out.view({-1});
  for (std::int64_t done = 0; done < total; done += piece) {
    const std::int64_t count = std::min(piece, total - done);
    at::Tensor buffer = at::empty({count}, ops::scalar_type(info.dtype));
    folder.read(name, static_cast<std::uint64_t>((first + done) * width), ops::bytes_of(buffer));
    check_finite(buffer, folder, name, first + done);
    flat.narrow(0, done, count).copy_(buffer);
  }
}

namespace {

/// Mean of the rows of a tensor [rows, columns], fp32 from fp64 sums in row order: the same for whoever asks.
at::Tensor mean_row(const io::SafetensorsFolder& folder, const std::string& name, std::int64_t rows,
                    std::int64_t columns) {
  at::Tensor sum = at::zeros({columns}, at::kDouble);
  const std::int64_t piece = std::max<std::int64_t>(1, kBufferBytes / (columns * 4));
  for (std::int64_t first = 0; first < rows; first += piece) {
    at::Tensor part = at::empty({std::min(piece, rows - first), columns}, at::kFloat);
    read_elements(folder, name, first * columns, part);
    for (std::int64_t row = 0; row < part.size(0); ++row) sum.add_(part[row]);
  }
  return (sum / static_cast<double>(rows)).to(at::kFloat);
}

}  // namespace

void read_base_elements(const io::SafetensorsFolder& folder, const Parameter& parameter, std::int64_t first,
                        const at::Tensor& out) {
  const std::int64_t columns = parameter.shape.back(), end = first + out.numel();
  if (!parameter.base_rows.empty()) {
    at::Tensor flat = out.view({-1});
    for (std::int64_t at = first; at < end;) {
      const std::int64_t column = at % columns, count = std::min(columns - column, end - at);
      const std::int64_t row = parameter.base_rows[static_cast<std::size_t>(at / columns)];
      read_elements(folder, parameter.name_in_base(), row * columns + column, flat.narrow(0, at - first, count));
      at += count;
    }
    return;
  }
  const std::int64_t stored = parameter.rows_in_base > 0 ? parameter.rows_in_base * columns : end;
  at::Tensor flat = out.view({-1});
  if (first < stored)
    read_elements(folder, parameter.name_in_base(), first, flat.narrow(0, 0, std::min(end, stored) - first));
  if (end <= stored) return;
  const at::Tensor mean = mean_row(folder, parameter.name_in_base(), parameter.rows_in_base, columns);
  for (std::int64_t at = std::max(first, stored); at < end;) {
    const std::int64_t column = at % columns, count = std::min(columns - column, end - at);
    flat.narrow(0, at - first, count).copy_(mean.narrow(0, column, count));
    at += count;
  }
}

void check_tensor(const io::SafetensorsFolder& folder, const std::string& name, const std::vector<std::int64_t>& shape,
                  std::string_view wish) {
  const io::TensorInfo& info = folder.tensor(name);
  const std::string file = folder.file_of(name).string();
  if (info.shape != shape)
    fail(ErrorClass::kBadModel, "{}: tensor '{}' has shape [{}], {} [{}]", file, name, fmt::join(info.shape, ", "),
         wish, fmt::join(shape, ", "));
  if (!is_weight_dtype(info.dtype))
    fail(ErrorClass::kBadModel, "{}: tensor '{}' has dtype {}, expected F32, F16 or BF16", file, name,
         dtype_name(info.dtype));
}

void check_weights(const io::SafetensorsFolder& folder, const std::vector<UnitSpec>& units, bool tied_embeddings,
                   const CheckPacked& check_packed) {
  std::set<std::string> known;
  for (const UnitSpec& unit : units)
    for (const Parameter& parameter : unit.parameters) {
      if (parameter.initial != Initial::kBase || parameter.borrowed) continue;
      if (check_packed && parameter.packed_bytes > 0) {
        check_packed(parameter, known);
        continue;
      }
      if (!parameter.base_rows.empty()) continue;  // of a table that is checked itself
      const std::string& name = parameter.name_in_base();
      known.insert(name);
      std::vector<std::int64_t> shape = parameter.file_shape();
      if (parameter.rows_in_base > 0) shape[0] = parameter.rows_in_base;
      if (!folder.contains(name))
        fail(ErrorClass::kBadModel, "the model files hold no tensor '{}' (expected shape [{}])", name,
             fmt::join(shape, ", "));
      check_tensor(folder, name, shape, "config.json asks for");
    }
  for (const std::string& name : folder.names())
    if (!known.contains(name) && !is_redundant(name, tied_embeddings))
      fail(ErrorClass::kBadModel, "{}: tensor '{}' is not part of the model that config.json describes",
           folder.file_of(name).string(), name);
}

}  // namespace shardtune::model
