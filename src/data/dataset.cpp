#include "shardtune/data/dataset.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "messages.h"
#include "record_lines.h"
#include "shardtune/core/error.h"
#include "shardtune/data/chat.h"
#include "shardtune/data/prompts.h"

namespace shardtune::data {
namespace {

/// Turns the records of one file into examples; the file and line of the record at hand are in `where`.
class ExampleReader {
 public:
  ExampleReader(const DataOptions& options, const TokenizerSource& tokenizer, std::int64_t model_vocabulary)
      : options_(options), tokenizer_(tokenizer), model_vocabulary_(model_vocabulary) {}

  Example read(const nlohmann::json& record, const std::string& where) {
    if (!record.is_object())
      fail(ErrorClass::kBadData, "{}: expected a JSON object, found {}", where, record.type_name());
    Example example;
    if (record.contains("input_ids")) example = from_ids(record, where);
    else if (record.contains("messages")) example.ids = from_messages(record["messages"], where);
    else if (record.contains(options_.dataset_text_field))
      example.ids = from_text(record[options_.dataset_text_field], where);
    else refuse_columns(record, where);
    if (example.labels.empty()) example.labels = example.ids;
    for (const std::int32_t id : example.ids)
      if (id >= model_vocabulary_)
        fail(ErrorClass::kBadData,
             "{}: token id {} is outside the model's vocabulary of {} rows; use the model's own tokenizer", where, id,
             model_vocabulary_);
    return example;
  }

 private:
  [[noreturn]] void refuse_columns(const nlohmann::json& record, const std::string& where) const {
    std::string names;
    for (const auto& [name, value] : record.items()) names += (names.empty() ? "'" : ", '") + name + "'";
    fail(ErrorClass::kBadData,
         "{}: no known column; expected 'input_ids', 'messages' or the text column '{}' "
         "(--dataset_text_field), found {}",
         where, options_.dataset_text_field, names.empty() ? "no column" : names);
  }

  std::vector<std::int32_t> from_text(const nlohmann::json& value, const std::string& where) const {
    std::string text = text_of(value, "column '" + options_.dataset_text_field + "'", where);
    const Tokenizer& tokenizer = tokenizer_();
    const std::string& eos = tokenizer.eos_token();
    if (!eos.empty() && !text.ends_with(eos)) text += eos;
    return encode_text(tokenizer, text);
  }

  std::vector<std::int32_t> from_messages(const nlohmann::json& value, const std::string& where) {
    const std::vector<Message> messages = parse_messages(value, where);
    const Tokenizer& tokenizer = tokenizer_();
    if (!renderer_) renderer_.emplace(tokenizer, options_.chat_template_format);
    try {
      return tokenizer.encode(renderer_->render(messages, false), false);
    } catch (const Error& error) {
      throw Error(error.error_class(), where + ": " + error.what());
    }
  }

  std::vector<std::int32_t> integers(const nlohmann::json& value, const char* column, bool allow_ignored,
                                     const std::string& where) const {
    if (!value.is_array())
      fail(ErrorClass::kBadData, "{}: '{}' must be a list, found {}", where, column, value.type_name());
    std::vector<std::int32_t> out;
    out.reserve(value.size());
    constexpr std::uint64_t kHighest = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const nlohmann::json& entry = value[i];
      const bool beyond = entry.is_number_unsigned() && entry.get<std::uint64_t>() > kHighest;  // would wrap around
      const bool number = entry.is_number_integer() && !beyond;
      const std::int64_t id = number ? entry.get<std::int64_t>() : -1;
      if (!(number && allow_ignored && id == kIgnoredLabel) && (id < 0 || id >= model_vocabulary_))
        fail(ErrorClass::kBadData, "{}: '{}' entry {} is {}; expected an id from 0 to {}{}", where, column, i + 1,
             entry.dump(), model_vocabulary_ - 1, allow_ignored ? " or -100" : "");
      out.push_back(static_cast<std::int32_t>(id));
    }
    return out;
  }

  Example from_ids(const nlohmann::json& record, const std::string& where) const {
    Example example;
    example.ids = integers(record["input_ids"], "input_ids", false, where);
    if (!record.contains("labels")) return example;
    example.labels = integers(record["labels"], "labels", true, where);
    if (example.labels.size() != example.ids.size())
      fail(ErrorClass::kBadData,
           "{}: {} labels for {} input_ids; the two must have the same length (labels are not shifted)", where,
           example.labels.size(), example.ids.size());
    return example;
  }

  const DataOptions& options_;
  const TokenizerSource& tokenizer_;
  std::optional<ChatRenderer> renderer_;  ///< made for the first conversation
  std::int64_t model_vocabulary_;
};

}  // namespace

std::vector<Example> read_examples(const std::filesystem::path& file, const DataOptions& options,
                                   const TokenizerSource& tokenizer, std::int64_t model_vocabulary) {
  ExampleReader reader(options, tokenizer, model_vocabulary);
  std::vector<Example> examples;
  for_each_record(file, [&](const nlohmann::json& record, const std::string& where, std::int64_t line) {
    examples.push_back(reader.read(record, where));
    examples.back().line = line;
  });
  if (examples.empty()) fail(ErrorClass::kBadData, "{}: the data set holds no record", file.string());
  return examples;
}

std::filesystem::path split_file(const DataOptions& options, bool train) {
  const std::filesystem::path data(options.dataset_name);
  if (options.dataset_name.empty())
    fail(ErrorClass::kUsage, "--dataset_name is missing: a .jsonl file, or a folder with one per split");
  if (!std::filesystem::exists(data))
    fail(ErrorClass::kBadData, "{}: no such file or folder (--dataset_name)", data.string());
  if (!std::filesystem::is_directory(data)) return train ? data : std::filesystem::path();
  const std::string& split = train ? options.dataset_train_split : options.dataset_test_split;
  const std::filesystem::path file = data / (split + ".jsonl");
  if (std::filesystem::exists(file)) return file;
  if (train)
    fail(ErrorClass::kBadData, "{}: no such file; the folder must hold the training split (--dataset_train_split '{}')",
         file.string(), split);
  return {};
}

}  // namespace shardtune::data
