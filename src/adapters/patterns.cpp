#include "patterns.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "module_names.h"
#include "shardtune/core/list.h"
#include "shardtune/io/json.h"

namespace shardtune::adapters {
namespace {

constexpr std::int64_t kMaxRank = 65536;
constexpr const char* kRankOption = "--rank_pattern";
constexpr const char* kAlphaOption = "--alpha_pattern";

/// The keys and the values' texts, in the order written.
std::vector<std::pair<std::string, std::string>> read_pairs(const std::string& option, const std::string& text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  if (trimmed(text).empty()) return pairs;
  if (trimmed(text).front() == '{') {
    io::parse_json(text, option, ErrorClass::kUsage, {.max_bytes = 1 << 20});  // its limits; the order is lost there
    const auto object = nlohmann::ordered_json::parse(text);
    for (const auto& [key, value] : object.items()) pairs.emplace_back(key, value.dump());
    return pairs;
  }
  for (const std::string& entry : split_list(option, text)) {
    const std::size_t equals = entry.rfind('=');
    if (equals == std::string::npos || equals == 0)
      fail(ErrorClass::kUsage, "{}: '{}' is no KEY=VALUE, as in q_proj=4; JSON is taken as well", option, entry);
    pairs.emplace_back(trimmed(entry.substr(0, equals)), trimmed(entry.substr(equals + 1)));
  }
  return pairs;
}

template <typename T>
Pattern<T> parse_pattern(const std::string& option, const std::string& text, const char* expected) {
  Pattern<T> pattern;
  for (const auto& [key, value] : read_pairs(option, text)) {
    T number{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool whole = error == std::errc{} && end == value.data() + value.size();
    const bool in_range = std::is_integral_v<T> ? number >= 1 && static_cast<double>(number) <= double{kMaxRank}
                                                : number > 0 && number <= std::numeric_limits<T>::max();
    if (std::ranges::find(pattern, key, &std::pair<std::string, T>::first) != pattern.end())
      fail(ErrorClass::kUsage, "{}: '{}' is given twice", option, key);
    if (!whole || !in_range) fail(ErrorClass::kUsage, "{}: '{}' has {}, expected {}", option, key, value, expected);
    pattern.emplace_back(key, number);
  }
  return pattern;
}

/// Values of the modules that a key matches; marks the keys that some module took.
template <typename T>
std::map<std::string, T> values_of(const char* option, const Pattern<T>& pattern, const std::set<std::string>& modules,
                                   std::set<std::string>* used = nullptr) {
  std::vector<std::pair<Regex, const std::pair<std::string, T>*>> compiled;
  for (const auto& entry : pattern) {
    compile_as_python(option, entry.first);  // by itself, so that a message shows what was written
    compiled.emplace_back(compile_as_python(option, fmt::format(R"((.*\.)?({}))", entry.first)), &entry);
  }
  std::map<std::string, T> values;
  for (const std::string& module : modules)
    for (const auto& [regex, entry] : compiled) {
      if (!regex.matches_whole(module)) continue;
      values.emplace(module, entry->second);  // the first stays
      if (used != nullptr) used->insert(entry->first);
    }
  return values;
}

template <typename T>
std::string first_unused(const char* option, const Pattern<T>& pattern, const std::set<std::string>& modules) {
  std::set<std::string> used;
  values_of(option, pattern, modules, &used);
  for (const auto& [key, value] : pattern)
    if (!used.contains(key)) return fmt::format("{}: '{}'", option, key);
  return "";
}

}  // namespace

Pattern<std::int64_t> parse_rank_pattern(const std::string& text) {
  return parse_pattern<std::int64_t>(kRankOption, text, "a rank, an integer from 1 to 65536");
}

Pattern<double> parse_alpha_pattern(const std::string& text) {
  return parse_pattern<double>(kAlphaOption, text, "a number above 0");
}

void apply_patterns(LoraConfig& lora) {
  lora.ranks = values_of(kRankOption, lora.rank_pattern, lora.modules);
  lora.alphas = values_of(kAlphaOption, lora.alpha_pattern, lora.modules);
}

std::string unused_key(const LoraConfig& lora) {
  const std::string rank = first_unused(kRankOption, lora.rank_pattern, lora.modules);
  return rank.empty() ? first_unused(kAlphaOption, lora.alpha_pattern, lora.modules) : rank;
}

}  // namespace shardtune::adapters
