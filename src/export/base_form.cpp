#include <fmt/format.h>

#include "merge_sources.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"

namespace shardtune::exporting {
namespace {

using OptionalFormat = std::optional<quant::Format>;

OptionalFormat stored_format(const model::ModelConfig& config) {
  if (!config.quantisation) return std::nullopt;
  return quant::format_of({.use_4bit_quantization = config.quantisation->four_bit,
                           .use_8bit_quantization = !config.quantisation->four_bit,
                           .bnb_4bit_quant_type = config.quantisation->type,
                           .use_nested_quant = config.quantisation->nested});
}

std::string describe_format(const OptionalFormat& format) {
  return format ? quant::describe(*format) : "not quantised";
}

/// The adapter whose folder tells of its base; null when none does. All that do must say the same.
const AdapterSource* adapter_with_record(const MergeSources& sources) {
  const AdapterSource* first = nullptr;
  for (const auto& adapter : sources.adapters) {
    if (!adapter->record) continue;
    if (first == nullptr) first = adapter.get();
    const BaseRecord &one = *first->record, &other = *adapter->record;
    if (one.quantisation != other.quantisation || one.type != other.type || one.compute_type != other.compute_type)
      fail(ErrorClass::kBadModel, "{} and {} were trained on different bases: {} ({}) and {} ({})",
           first->folder.string(), adapter->folder.string(), describe_format(one.quantisation),
           torch_type_name(one.type), describe_format(other.quantisation), torch_type_name(other.type));
  }
  return first;
}

/// Options, records and files may not contradict each other.
void check_agreement(const MergeRequest& request, const OptionalFormat& wish, const OptionalFormat& stored,
                     const AdapterSource* told) {
  const OptionalFormat record = told != nullptr ? told->record->quantisation : std::nullopt;
  if (request.quantised_by_option && told != nullptr && wish != record)
    fail(ErrorClass::kUsage,
         "the options say that the base was {}, {} says {}; leave the options of the quantised base out",
         describe_format(wish), (told->folder / BaseRecord::kFileName).string(), describe_format(record));
  if (stored && request.quantised_by_option && wish != stored)
    fail(ErrorClass::kUsage,
         "the options say that the base was {}, the model's files are {}; leave the options of the quantised base out",
         describe_format(wish), describe_format(stored));
  if (stored && told != nullptr && record != stored)
    fail(ErrorClass::kBadModel, "{}: was trained on a base that was {}, the model's files are {}",
         told->folder.string(), describe_format(record), describe_format(stored));
  if (stored && request.merge.merge_base == "original")
    fail(
        ErrorClass::kUsage,
        "--merge_base original: the model's files are quantised ({}); give the original model, or --merge_base trained",
        describe_format(stored));
}

void notice_missing_records(const MergeRequest& request, bool stored, MergeSources& sources) {
  const char* more = request.quantised_by_option || stored || request.merge.merge_base == "original"
                         ? ""
                         : ", and its base is taken as not quantised (give --use_4bit_quantization if it was)";
  for (const auto& adapter : sources.adapters)
    if (!adapter->record)
      sources.notices.push_back(
          fmt::format("{} holds no {}: whether it belongs to this base is known from names and shapes alone{}",
                      adapter->folder.string(), BaseRecord::kFileName, more));
}

}  // namespace

std::string BaseForm::describe() const {
  if (!format) return fmt::format("the weights of the files, in {}", torch_type_name(type));
  return fmt::format("dequantised weights of {}{}, in {}", quant::describe(*format),
                     stored ? " (as the files are)" : "", torch_type_name(compute_type));
}

BaseForm settle_form(const MergeRequest& request, MergeSources& sources) {
  const at::ScalarType files = ops::scalar_type(sources.config.dtype);
  const OptionalFormat stored = stored_format(sources.config);
  const OptionalFormat wish = request.quantised_by_option ? quant::format_of(request.quant) : std::nullopt;
  const AdapterSource* told = adapter_with_record(sources);
  check_agreement(request, wish, stored, told);
  notice_missing_records(request, stored.has_value(), sources);
  BaseForm form{.type = files, .compute_type = files, .format = stored, .stored = stored.has_value()};
  if (request.merge.merge_base == "original") return form;
  if (told != nullptr && told->record->quantisation) {
    form.type = told->record->type;
    form.compute_type = told->record->compute_type;
    form.format = told->record->quantisation;
  } else if (request.quantised_by_option) {
    form.format = wish;
  }
  if (request.quant.bnb_4bit_compute_dtype != "auto")
    form.compute_type = *torch_type(request.quant.bnb_4bit_compute_dtype);
  return form;
}

}  // namespace shardtune::exporting
