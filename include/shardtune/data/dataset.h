#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "shardtune/data/options.h"
#include "shardtune/data/tokenizer.h"

namespace shardtune::data {

constexpr std::int32_t kIgnoredLabel = -100;

/// One tokenised sample of the data set. `labels` has the length of `ids` and is not shifted; kIgnoredLabel marks tokens
/// that are not trained.
struct Example {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;
  std::int64_t line = 0;  ///< physical line in the file, from 1
};

/// Gives the tokenizer; asked only when a record needs it. Data of `input_ids` alone trains with a tokenizer that this program
/// cannot follow.
using TokenizerSource = std::function<const Tokenizer&()>;

/// Reads a JSON Lines file: one object per line with `input_ids` (+ `labels`, not shifted, -100 for none), `messages` (list of
/// role/content) or a text column; where a line has several, the first of these counts. Line ends are LF or CR LF only; a
/// byte order mark and blank lines are skipped. Text rows get what TRL gives them: the post-processor's special tokens, and
/// the eos token appended unless the text ends with it; a text that begins with BOS itself gets no second one. Conversations
/// are rendered by the template and get no further special tokens. Errors name file and physical line: not UTF-8, invalid
/// JSON, over 64 MiB, no known column, wrong types, id outside [0, model_vocabulary). An empty data set is Error(kBadData).
/// `model_vocabulary` is the number of embedding rows.
std::vector<Example> read_examples(const std::filesystem::path& file, const DataOptions& options,
                                   const TokenizerSource& tokenizer, std::int64_t model_vocabulary);

/// The file of a split: dataset_name itself for the training split when it is a file, else FOLDER/SPLIT.jsonl. Returns an
/// empty path when the test split does not exist; a missing training split is Error(kBadData).
std::filesystem::path split_file(const DataOptions& options, bool train);

}  // namespace shardtune::data
