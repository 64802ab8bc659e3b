#pragma once
#include <c10/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "shardtune/quant/format.h"

namespace shardtune::exporting {

/// The base that an adapter was trained on. It lies beside adapter_config.json, in a file that PEFT does not look at.
struct BaseRecord {
  static constexpr std::string_view kFileName = "shardtune_base.json";

  std::string fingerprint;  ///< checkpoint::base_fingerprint() of the model's files
  at::ScalarType type{};  ///< in which the weights were held, or quantised from
  at::ScalarType compute_type{};  ///< to which quantised weights were expanded
  std::optional<quant::Format> quantisation{};  ///< of the layers' linears
};

/// Replaces an older one. No communication.
void write_base_record(const std::filesystem::path& folder, const BaseRecord& record);
/// Nothing where the folder has none: it was not written by this program. Error(kBadModel) for a damaged one.
std::optional<BaseRecord> read_base_record(const std::filesystem::path& folder);

/// "float32", "bfloat16" or "float16", as Transformers' configurations have it, and back; nothing for other names.
std::string_view torch_type_name(at::ScalarType type);
std::optional<at::ScalarType> torch_type(std::string_view name);

}  // namespace shardtune::exporting
