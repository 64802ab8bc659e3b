#include "messages.h"

#include <nlohmann/json.hpp>

#include "shardtune/core/error.h"

namespace shardtune::data {

std::string text_of(const nlohmann::json& value, const std::string& what, const std::string& where) {
  if (!value.is_string())
    fail(ErrorClass::kBadData, "{}: {} must be a string, found {}", where, what, value.type_name());
  return value.get<std::string>();
}

std::vector<Message> parse_messages(const nlohmann::json& value, const std::string& where) {
  if (!value.is_array() || value.empty())
    fail(ErrorClass::kBadData, "{}: 'messages' must be a list with at least one message", where);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string here = fmt::format("{}: message {}", where, i + 1);
    const nlohmann::json& entry = value[i];
    if (!entry.is_object() || !entry.contains("role") || !entry.contains("content"))
      fail(ErrorClass::kBadData, "{} must be an object with 'role' and 'content'", here);
    messages.push_back({text_of(entry["role"], "'role'", here), text_of(entry["content"], "'content'", here)});
  }
  return messages;
}

}  // namespace shardtune::data
