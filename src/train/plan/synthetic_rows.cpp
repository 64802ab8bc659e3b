#include "synthetic_rows.h"

#include <algorithm>
#include <cmath>

#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::train {

std::vector<data::Row> synthetic_rows(const options::RunOptions& options) {
  const PlanOptions& job = options.plan;
  const std::int64_t longest = options.data.max_length;
  constexpr std::int64_t kMostTokens = 1 << 26;  // of a micro-batch: their ids are really laid out
  const std::int64_t rows = options.train.per_device_train_batch_size;
  if (longest * rows > kMostTokens)
    fail(ErrorClass::kUsage,
         "a micro-batch of {} of {} is more than the {} that can be planned; lower "
         "--per_device_train_batch_size or --max_length",
         counted(rows, "row"), counted(longest, "token"), kMostTokens);
  const std::int64_t document = job.document_tokens > 0 ? std::min(job.document_tokens, longest) : longest;
  const std::int64_t length = options.data.packing ? longest : document;
  data::Row row;
  row.ids.assign(static_cast<std::size_t>(length), 0);
  row.labels.assign(static_cast<std::size_t>(length), data::kIgnoredLabel);
  std::int64_t sample = 0;
  for (std::int64_t first = 0; first < length; first += document) {
    const std::int64_t tokens = std::min(document, length - first);
    const auto trained = static_cast<std::int64_t>(std::llround(static_cast<double>(tokens) * job.trained_fraction));
    std::fill(row.labels.begin() + (first + tokens - trained), row.labels.begin() + (first + tokens), 0);
    row.segments.push_back(static_cast<std::int32_t>(tokens));
    row.pieces.push_back({.tokens = static_cast<std::int32_t>(tokens), .sample = sample++, .first_position = 0});
  }
  if (std::none_of(row.labels.begin() + 1, row.labels.end(), [](std::int32_t label) { return label >= 0; }) ||
      document < 2)
    fail(ErrorClass::kUsage,
         "--plan_trained_fraction {} leaves no trained token in a document of {}, whose first one is never a "
         "target; raise it or --plan_document_tokens",
         job.trained_fraction, counted(document, "token"));
  const bool whole_row =
      options.data.packing && options.data.packing_strategy == "wrapped" && options.data.wrapped_attention == "row";
  if (whole_row) row.segments = {static_cast<std::int32_t>(length)};
  return std::vector<data::Row>(static_cast<std::size_t>(options.train.per_device_train_batch_size), row);
}

}  // namespace shardtune::train
