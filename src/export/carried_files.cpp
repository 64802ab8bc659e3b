#include "shardtune/export/carried_files.h"

#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"
#include "shardtune/io/files.h"
#include "shardtune/io/json.h"

namespace shardtune::exporting {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = 256ULL << 20;

/// A link to nothing counts as there: it stands for a file that got lost.
bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::symlink_status(file, ignored).type() != fs::file_type::not_found;
}

}  // namespace

const std::vector<std::string_view>& carried_files(ResultKind kind) {
  static const std::vector<std::string_view> adapter = {"tokenizer.json", "tokenizer_config.json",
                                                        "special_tokens_map.json", "chat_template.jinja"};
  static const std::vector<std::string_view> full = {"generation_config.json", "tokenizer.json",
                                                     "tokenizer_config.json", "special_tokens_map.json",
                                                     "chat_template.jinja"};
  static const std::vector<std::string_view> merged = {"generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "special_tokens_map.json",
                                                       "tokenizer.model",
                                                       "added_tokens.json",
                                                       "vocab.json",
                                                       "merges.txt",
                                                       "chat_template.jinja",
                                                       "chat_template.json"};
  switch (kind) {
    case ResultKind::kAdapter: return adapter;
    case ResultKind::kFullModel: return full;
    case ResultKind::kMergedModel: return merged;
  }
  SHARDTUNE_CHECK(false, "an unknown kind of result");
}

void check_carried_files(const fs::path& base_folder, ResultKind kind) {
  for (const std::string_view name : carried_files(kind)) {
    const fs::path file = base_folder / name;
    if (!is_there(file)) continue;
    const std::string text = io::read_text_file(file, ErrorClass::kBadModel, kMaxBytes);
    if (file.extension() != ".json") continue;
    const nlohmann::json value = io::parse_json(text, file.string(), ErrorClass::kBadModel, {.max_bytes = kMaxBytes});
    if (!value.is_object())
      fail(ErrorClass::kBadModel, "{}: expected a JSON object, found {}", file.string(), value.type_name());
  }
}

void copy_carried_files(const fs::path& base_folder, const fs::path& folder, ResultKind kind) {
  for (const std::string_view name : carried_files(kind))
    if (const fs::path file = base_folder / name; is_there(file))
      io::write_file_atomic(folder / name, io::read_text_file(file, ErrorClass::kBadModel, kMaxBytes));
}

}  // namespace shardtune::exporting
