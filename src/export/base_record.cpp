#include "shardtune/export/base_record.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"

namespace shardtune::exporting {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 3> kTypes = {
    {{"float32", at::ScalarType::Float}, {"bfloat16", at::ScalarType::BFloat16}, {"float16", at::ScalarType::Half}}};

nlohmann::ordered_json quantisation_json(const std::optional<quant::Format>& format) {
  if (!format) return nullptr;
  return {{"quant_type", quant::kind_name(format->kind)},
          {"double_quantisation", format->double_quantisation},
          {"block_size", format->block_size}};
}

quant::Format format_of(const json& stored) {
  quant::Format format{.double_quantisation = stored.at("double_quantisation").get<bool>(),
                       .block_size = stored.at("block_size").get<std::int64_t>()};
  const std::string kind = stored.at("quant_type").get<std::string>();
  for (const quant::Kind known : {quant::Kind::kNf4, quant::Kind::kFp4, quant::Kind::kInt8})
    if (quant::kind_name(known) == kind) {
      format.kind = known;
      if (format != quant::kInt8Format) quant::check_format(format);
      return format;
    }
  fail(ErrorClass::kBadModel, "unknown quant_type '{}'", kind);
}

at::ScalarType type_of(const json& stored) {
  const auto type = torch_type(stored.get<std::string>());
  if (!type) fail(ErrorClass::kBadModel, "unknown type '{}'", stored.get<std::string>());
  return *type;
}

}  // namespace

std::string_view torch_type_name(at::ScalarType type) {
  for (const auto& [name, known] : kTypes)
    if (known == type) return name;
  SHARDTUNE_CHECK(false, "weights of a type without a name");
  return "";
}

std::optional<at::ScalarType> torch_type(std::string_view name) {
  for (const auto& [known, type] : kTypes)
    if (known == name) return type;
  return std::nullopt;
}

void write_base_record(const std::filesystem::path& folder, const BaseRecord& record) {
  const nlohmann::ordered_json text = {{"version", 1},
                                       {"base_fingerprint", record.fingerprint},
                                       {"base_dtype", torch_type_name(record.type)},
                                       {"compute_dtype", torch_type_name(record.compute_type)},
                                       {"quantisation", quantisation_json(record.quantisation)}};
  io::write_file_atomic(folder / BaseRecord::kFileName, text.dump(2) + "\n");
}

std::optional<BaseRecord> read_base_record(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / BaseRecord::kFileName;
  if (!std::filesystem::exists(file)) return std::nullopt;
  const json stored = io::read_json_file(file, ErrorClass::kBadModel, {.max_bytes = 1 << 16});
  try {
    if (stored.at("version") != 1)
      fail(ErrorClass::kBadModel, "version {}, this program reads version 1", stored.at("version").dump());
    BaseRecord record{.fingerprint = stored.at("base_fingerprint").get<std::string>(),
                      .type = type_of(stored.at("base_dtype")),
                      .compute_type = type_of(stored.at("compute_dtype"))};
    if (!stored.at("quantisation").is_null()) record.quantisation = format_of(stored.at("quantisation"));
    return record;
  } catch (const json::exception& error) {
    fail(ErrorClass::kBadModel,
         "{}: is damaged: {}; take the file from the run's folder again, or do without: the base is then "
         "not checked",
         file.string(), error.what());
  } catch (const Error& error) {
    fail(ErrorClass::kBadModel, "{}: {}", file.string(), error.what());
  }
}

}  // namespace shardtune::exporting
