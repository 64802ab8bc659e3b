#pragma once
#include <c10/core/ScalarType.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardtune/adapters/lora.h"
#include "shardtune/export/base_record.h"
#include "shardtune/export/merge.h"
#include "shardtune/io/safetensors.h"
#include "shardtune/model/config.h"
#include "shardtune/model/parameters.h"

namespace shardtune::exporting {

/// An adapter's folder, opened.
struct AdapterSource {
  std::filesystem::path folder;
  adapters::LoraConfig lora;
  io::SafetensorsFolder weights;
  std::optional<BaseRecord> record;
  std::optional<double> weight;  ///< nothing: one adapter, added as it is
};

/// How the weights are taken from the model's files before anything is added.
struct BaseForm {
  at::ScalarType type{};  ///< of the values that are quantised
  at::ScalarType compute_type{};  ///< of dequantised weights
  std::optional<quant::Format> format{};  ///< the layers' linears are quantised and dequantised
  bool stored = false;  ///< `format` is that of the files

  std::string describe() const;
};

/// Everything that is read.
struct MergeSources {
  model::ModelConfig config;
  std::unique_ptr<io::SafetensorsFolder> base;
  std::vector<model::UnitSpec> units;  ///< the model's parameters, without adapters
  std::vector<std::unique_ptr<AdapterSource>> adapters;
  BaseForm form;
  std::vector<std::string> notices;
};

/// What was trained on, or what the files hold: as options, the adapters' records and the files say, which may not contradict
/// each other (Error(kUsage), Error(kBadModel)). Adds a notice for an adapter without a record.
BaseForm settle_form(const MergeRequest& request, MergeSources& sources);

/// Opens and checks all of it before any weight is read. Error(kUsage) for wishes that do not go together, Error(kBadModel)
/// for what the folders hold. No communication.
MergeSources open_sources(const MergeRequest& request);

/// Compares the base with the one each adapter was trained on. Error(kBadModel) with both fingerprints.
void check_fingerprint(const MergeSources& sources, const std::string& base);

/// Whether an adapter has factors for this module: one that is saved whole has none, whatever its targets say.
bool has_low_rank(const AdapterSource& adapter, const std::string& module);
/// Whether an adapter changes this module or holds a copy of its own.
bool touches(const AdapterSource& adapter, const std::string& module);

}  // namespace shardtune::exporting
