#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"
#include "shardtune/io/safetensors_layout.h"

namespace shardtune::io {
namespace {

/// The reference library's own list of types, back to front: tensors are written in this order, then by name. Measured
/// with tests/parity/data/cases/safetensors-odd-writer/make.py.
constexpr std::array kOrder{Dtype::kU64,    Dtype::kI64,    Dtype::kF64, Dtype::kF32, Dtype::kU32,
                            Dtype::kI32,    Dtype::kBF16,   Dtype::kF16, Dtype::kU16, Dtype::kI16,
                            Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kI8,  Dtype::kU8,  Dtype::kBool};

auto order_key(const TensorSpec& spec) {
  const auto place = std::ranges::find(kOrder, spec.dtype) - kOrder.begin();
  return std::pair(place, std::string_view(spec.name));
}

/// JSON spelling of a string. Text other than UTF-8 cannot be written.
std::string json_string(const std::string& text) {
  SHARDTUNE_CHECK(find_invalid_utf8(text) == std::string_view::npos, "a name to be written is not UTF-8: {}", text);
  return nlohmann::json(text).dump();
}

std::string header_text(const std::vector<TensorSpec>& ordered, const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> items;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(json_string(key) + ":" + json_string(value));
    items.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::uint64_t begin = 0;
  for (const TensorSpec& spec : ordered) {
    const std::uint64_t end = begin + spec.bytes();
    items.push_back(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                                json_string(spec.name), dtype_name(spec.dtype), fmt::join(spec.shape, ","), begin,
                                end));
    begin = end;
  }
  std::string text = fmt::format("{{{}}}", fmt::join(items, ","));
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

std::uint64_t TensorSpec::bytes() const {
  std::uint64_t product = dtype_bytes(dtype);
  for (const std::int64_t size : shape)
    SHARDTUNE_CHECK(size >= 0 && !__builtin_mul_overflow(product, static_cast<std::uint64_t>(size), &product),
                    "tensor '{}' to be written: bad dimension {}", name, size);
  return product;
}

SafetensorsLayout lay_out_safetensors(std::vector<TensorSpec> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout{.order = std::move(tensors), .offsets = {}, .head = {}};
  std::ranges::sort(layout.order, {}, order_key);
  std::vector<std::string_view> names;
  for (const TensorSpec& spec : layout.order) {
    SHARDTUNE_CHECK(spec.name != "__metadata__", "a tensor cannot be called __metadata__");
    names.push_back(spec.name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  SHARDTUNE_CHECK(twice == names.end(), "tensor '{}' is to be written twice", *twice);

  const std::string header = header_text(layout.order, metadata);
  for (std::size_t i = 0; i < 8; ++i) layout.head += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  layout.head += header;
  layout.file_bytes = layout.head.size();
  for (const TensorSpec& spec : layout.order) {
    layout.offsets.push_back(layout.file_bytes);
    layout.file_bytes += spec.bytes();
  }
  return layout;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::make_unique<AtomicFile>(path)) {
  SafetensorsLayout layout = lay_out_safetensors(std::move(tensors), metadata);
  file_->write(std::as_bytes(std::span(layout.head)));
  left_ = layout.file_bytes - layout.head.size();
  order_ = std::move(layout.order);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::span<const std::byte> data) {
  SHARDTUNE_CHECK(data.size() <= left_, "{} bytes appended, only {} are left to write", data.size(), left_);
  file_->write(data);
  left_ -= data.size();
}

void SafetensorsWriter::publish() {
  SHARDTUNE_CHECK(left_ == 0, "{} bytes of tensors were not written", left_);
  file_->publish();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  std::map<std::string_view, const TensorView*> views;
  for (const TensorView& view : tensors) {
    specs.push_back({view.name, view.dtype, view.shape});
    views.emplace(view.name, &view);
    SHARDTUNE_CHECK(specs.back().bytes() == view.data.size(), "tensor '{}': shape needs {} bytes, {} given", view.name,
                    specs.back().bytes(), view.data.size());
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.order()) writer.append(views.at(spec.name)->data);
  writer.publish();
}

}  // namespace shardtune::io
