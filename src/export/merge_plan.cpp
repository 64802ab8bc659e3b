#include "merge_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "adapter_tensors.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::exporting {

std::int64_t block_elements = 1 << 20;

namespace {

constexpr std::int64_t kLeastRows = 64;

std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

void add_sources(const MergeSources& sources, ResultTensor& tensor) {
  const std::string module = module_of(tensor.name);
  tensor.table = module == kTableModule;
  for (const auto& adapter : sources.adapters) {
    if (adapter->lora.saved_modules.contains(module)) {
      tensor.saved = adapter.get();
      tensor.saved_name = adapters::peft_name(tensor.name);
    }
    if (const auto found = adapter->lora.token_rows.find(module); found != adapter->lora.token_rows.end())
      tensor.token_rows.push_back({adapter.get(), token_rows_tensor(adapter->lora, module), found->second});
    if (has_low_rank(*adapter, module))
      tensor.parts.push_back({.adapter = adapter.get(),
                              .module = module,
                              .rank = adapter->lora.rank_of(module),
                              .scaling = adapter->lora.scaling_of(module)});
  }
}

void list_tensors(const MergeSources& sources, MergePlan& plan) {
  // One table under both names stays one.
  const bool stays_tied = std::ranges::all_of(sources.adapters, [](const auto& adapter) {
    return adapter->lora.ties_saved_modules || !(touches(*adapter, kTableModule) || touches(*adapter, "lm_head"));
  });
  plan.untied = sources.config.tied_embeddings && !stays_tied;
  plan.vocabulary = sources.config.vocab_size;
  const model::Parameter& embedding = sources.units.front().parameters.front();
  for (const model::UnitSpec& unit : sources.units) {
    std::vector<model::Parameter> parameters = unit.parameters;
    std::ranges::sort(parameters, {}, &model::Parameter::name);
    for (const model::Parameter& parameter : parameters) {
      if (parameter.borrowed && !plan.untied) continue;
      ResultTensor tensor;
      tensor.name = parameter.name;
      tensor.base = parameter.borrowed ? embedding : parameter;
      tensor.quantised = sources.form.format && &unit != &sources.units.front() && &unit != &sources.units.back() &&
                         tensor.base.shape.size() == 2;
      add_sources(sources, tensor);
      plan.tensors.push_back(std::move(tensor));
    }
  }
  // Transformers 5 writes in the order of the names, with numbers in them by value.
  std::stable_partition(plan.tensors.begin(), plan.tensors.end(),
                        [](const ResultTensor& one) { return one.name == "lm_head.weight"; });
}

/// As split_torch_state_dict_into_shards(): tensors in their order, a new file when the next would be too much, one that is too
/// large by itself alone.
std::vector<std::vector<std::size_t>> spread_over_files(const MergePlan& plan, std::uint64_t most) {
  std::vector<std::vector<std::size_t>> files;
  std::vector<std::size_t> current;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::uint64_t size = plan.tensors[i].elements() * c10::elementSize(plan.type);
    if (size > most) {
      files.push_back({i});
      continue;
    }
    if (bytes + size > most) {
      files.push_back(std::exchange(current, {}));
      bytes = 0;
    }
    current.push_back(i);
    bytes += size;
  }
  if (!current.empty()) files.push_back(std::move(current));
  std::erase_if(files, [](const auto& file) { return file.empty(); });
  return files;
}

void lay_out_files(MergePlan& plan, std::uint64_t most) {
  const auto files = spread_over_files(plan, most);
  plan.places.resize(plan.tensors.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::vector<io::TensorSpec> specs;
    std::map<std::string, std::size_t> numbers;
    for (const std::size_t tensor : files[i]) {
      specs.push_back({plan.tensors[tensor].name, ops::dtype_of(plan.type), plan.tensors[tensor].base.shape});
      numbers.emplace(plan.tensors[tensor].name, tensor);
    }
    ResultFile file{.name = files.size() == 1 ? "model.safetensors"
                                              : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size()),
                    .layout = io::lay_out_safetensors(std::move(specs), {{"format", "pt"}})};
    for (std::size_t k = 0; k < file.layout.order.size(); ++k)
      plan.places[numbers.at(file.layout.order[k].name)] = {i, file.layout.offsets[k]};
    plan.files.push_back(std::move(file));
  }
}

}  // namespace

std::uint64_t MergePlan::bytes() const {
  std::uint64_t sum = 0;
  for (const ResultTensor& tensor : tensors) sum += tensor.elements() * c10::elementSize(type);
  return sum;
}

std::int64_t rows_of_block(std::int64_t columns) {
  return std::max<std::int64_t>(1, block_elements / columns / kLeastRows) * kLeastRows;
}

MergePlan plan_merge(const MergeSources& sources, at::ScalarType type, const std::string& max_shard_size) {
  MergePlan plan;
  plan.type = type;
  list_tensors(sources, plan);
  lay_out_files(plan, parse_shard_size(max_shard_size));
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::int64_t rows = plan.tensors[i].rows(), each = rows_of_block(plan.tensors[i].columns());
    const std::int64_t count = std::max<std::int64_t>(1, rows / each);
    for (std::int64_t k = 0; k < count; ++k)
      plan.blocks.push_back({i, k * each, (k + 1 == count ? rows : (k + 1) * each) - k * each});
  }
  return plan;
}

std::uint64_t parse_shard_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 5> kUnits = {
      {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"", 1}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  for (char& c : unit) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  const auto known = std::ranges::find(kUnits, unit, [](const auto& entry) { return entry.first; });
  if (error != std::errc() || known == kUnits.end() || !(number * known->second >= 1) ||
      !(number * known->second <= 1e18))
    fail(ErrorClass::kUsage,
         "--max_shard_size '{}' is not a size; expected a number with KB, MB, GB or TB (powers of 1000), or of bytes",
         text);
  return static_cast<std::uint64_t>(number * known->second);
}

}  // namespace shardtune::exporting
