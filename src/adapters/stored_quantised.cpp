#include "shardtune/adapters/stored_quantised.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/io/json.h"
#include "shardtune/quant/tables.h"

namespace shardtune::adapters {
namespace {

using nlohmann::json;
using quant::RecordLayout;
using quant::RecordRun;

std::string state_name(const model::Parameter& parameter, const quant::Format& format) {
  return fmt::format("{}.quant_state.bitsandbytes__{}", parameter.name, quant::kind_name(format.kind));
}

/// "a.b.weight" -> "a.b".
std::string module_of(const model::Parameter& parameter) { return parameter.name.substr(0, parameter.name.rfind('.')); }

[[noreturn]] void bad(const io::SafetensorsFolder& folder, const std::string& name, const std::string& problem) {
  fail(ErrorClass::kBadModel, "{}: tensor '{}' {}", folder.file_of(name).string(), name, problem);
}

/// A tensor of the files; refuses another type or number of elements.
void check_part(const io::SafetensorsFolder& folder, const std::string& name, Dtype dtype, std::int64_t elements,
                const model::Parameter& parameter, std::set<std::string>& known) {
  if (!folder.contains(name))
    fail(ErrorClass::kBadModel, "the model files hold no tensor '{}', which the quantised weight '{}' needs", name,
         parameter.name);
  known.insert(name);
  const io::TensorInfo& info = folder.tensor(name);
  if (info.dtype != dtype || (elements >= 0 && info.elements() != elements))
    bad(folder, name,
        fmt::format("has {} elements of {}, expected {} of {}", info.elements(), dtype_name(info.dtype),
                    elements < 0 ? "any number" : std::to_string(elements), dtype_name(dtype)));
}

template <typename T>
std::vector<T> read_part(const io::SafetensorsFolder& folder, const std::string& name, std::int64_t first,
                         std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  folder.read(name, static_cast<std::uint64_t>(first) * sizeof(T), std::as_writable_bytes(std::span(values)));
  if constexpr (std::is_same_v<T, float>)
    if (const auto at = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); }); at != values.end())
      bad(folder, name, fmt::format("holds a value that is not finite at element {}", first + (at - values.begin())));
  return values;
}

void check_table(const io::SafetensorsFolder& folder, const std::string& name, std::span<const float> wanted) {
  const auto found = read_part<float>(folder, name, 0, static_cast<std::int64_t>(wanted.size()));
  if (!std::ranges::equal(found, wanted)) bad(folder, name, "is another table of values than this format has");
}

json read_state(const io::SafetensorsFolder& folder, const std::string& name) {
  const auto text = read_part<char>(folder, name, 0, folder.tensor(name).elements());
  return io::parse_json({text.data(), text.size()}, folder.file_of(name).string() + ": " + name, ErrorClass::kBadModel,
                        {.max_bytes = 1 << 16});
}

void check_state(const io::SafetensorsFolder& folder, const std::string& name, const model::Parameter& parameter,
                 const quant::Format& format) {
  const json state = read_state(folder, name);
  json wanted = {
      {"quant_type", quant::kind_name(format.kind)}, {"blocksize", format.block_size}, {"shape", parameter.shape}};
  if (format.double_quantisation) wanted["nested_blocksize"] = quant::kNestedBlock;
  for (const auto& [key, value] : wanted.items())
    if (!state.is_object() || !state.contains(key) || state[key] != value)
      bad(folder, name,
          fmt::format("says {} for '{}', expected {}", state.is_object() ? state.value(key, json()).dump() : "nothing",
                      key, value.dump()));
  if (!format.double_quantisation) return;
  if (!state.contains("nested_offset") || !state["nested_offset"].is_number() ||
      !std::isfinite(state["nested_offset"].get<float>()))
    bad(folder, name, "has no number as 'nested_offset'");
}

void check_four_bit(const io::SafetensorsFolder& folder, const model::Parameter& parameter, const RecordLayout& layout,
                    std::set<std::string>& known) {
  const std::string& name = parameter.name;
  const quant::Format& format = layout.format();
  // Packed bytes may pretend to be of any type (bnb_4bit_quant_storage).
  const auto bytes = static_cast<std::uint64_t>((layout.elements() + 1) / 2);
  if (!folder.contains(name)) fail(ErrorClass::kBadModel, "the model files hold no tensor '{}'", name);
  known.insert(name);
  if (folder.tensor(name).bytes != bytes)
    bad(folder, name,
        fmt::format("has {} bytes, expected {} for [{}] in 4 bits", folder.tensor(name).bytes, bytes,
                    fmt::join(parameter.shape, ", ")));
  const auto part = [&](const char* suffix, Dtype dtype, std::int64_t elements) {
    check_part(folder, name + suffix, dtype, elements, parameter, known);
  };
  part(".absmax", format.double_quantisation ? Dtype::kU8 : Dtype::kF32, layout.num_blocks());
  part(".quant_map", Dtype::kF32, 16);
  check_part(folder, state_name(parameter, format), Dtype::kU8, -1, parameter, known);
  check_state(folder, state_name(parameter, format), parameter, format);
  check_table(folder, name + ".quant_map", quant::code_values(format.kind));
  if (!format.double_quantisation) return;
  part(".nested_absmax", Dtype::kF32, layout.num_nested_blocks());
  part(".nested_quant_map", Dtype::kF32, 256);
  check_table(folder, name + ".nested_quant_map", quant::code_values(quant::StateCode::kSigned));
}

std::vector<std::byte> read_four_bit(const io::SafetensorsFolder& folder, const model::Parameter& parameter,
                                     const RecordLayout& layout, RecordRun run) {
  const std::string& name = parameter.name;
  const std::int64_t first_block = run.first * layout.blocks_per_record(), blocks = layout.blocks_in(run);
  const auto packed =
      read_part<std::uint8_t>(folder, name, run.first * quant::kRecordElements / 2, (layout.elements_in(run) + 1) / 2);
  std::vector<float> absmax, nested;
  std::vector<std::uint8_t> codes;
  quant::FourBitView view{.packed = packed, .absmax = {}, .absmax_codes = {}, .nested_absmax = {}};
  if (layout.format().double_quantisation) {
    codes = read_part<std::uint8_t>(folder, name + ".absmax", first_block, blocks);
    nested = read_part<float>(folder, name + ".nested_absmax", 0, layout.num_nested_blocks());
    view.absmax_codes = codes;
    view.nested_absmax = nested;
    view.offset = read_state(folder, state_name(parameter, layout.format()))["nested_offset"].get<float>();
  } else {
    absmax = read_part<float>(folder, name + ".absmax", first_block, blocks);
    view.absmax = absmax;
  }
  std::vector<std::byte> records(static_cast<std::size_t>(run.count * layout.bytes_per_record()));
  quant::records_from_arrays(layout, run, view, records);
  return records;
}

}  // namespace

void check_stored(const io::SafetensorsFolder& folder, const model::Parameter& parameter, const quant::Format& format,
                  std::set<std::string>& known) {
  const RecordLayout layout(format, parameter.shape[0], parameter.shape[1]);
  if (format.four_bit()) return check_four_bit(folder, parameter, layout, known);
  check_part(folder, parameter.name, Dtype::kI8, layout.elements(), parameter, known);
  check_part(folder, module_of(parameter) + ".SCB", Dtype::kF32, layout.rows(), parameter, known);
  // How a GPU kernel would order the bytes: 0, row by row, is the only way that files have today.
  const std::string order = parameter.name + "_format";
  if (!folder.contains(order)) return;
  check_part(folder, order, Dtype::kU8, 1, parameter, known);
  if (const auto value = read_part<std::uint8_t>(folder, order, 0, 1).front(); value != 0)
    bad(folder, order, fmt::format("is {}, expected 0: rows one after the other", value));
}

std::vector<std::byte> read_stored(const io::SafetensorsFolder& folder, const model::Parameter& parameter,
                                   const RecordLayout& layout, RecordRun run) {
  if (layout.format().four_bit()) return read_four_bit(folder, parameter, layout, run);
  const auto codes =
      read_part<std::int8_t>(folder, parameter.name, run.first * layout.columns(), run.count * layout.columns());
  const auto absmax = read_part<float>(folder, module_of(parameter) + ".SCB", run.first, run.count);
  std::vector<std::byte> records(static_cast<std::size_t>(run.count * layout.bytes_per_record()));
  quant::records_from_rows(layout, run, codes, absmax, records);
  return records;
}

}  // namespace shardtune::adapters
