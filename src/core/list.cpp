#include "shardtune/core/list.h"

#include <algorithm>

#include "shardtune/core/error.h"

namespace shardtune {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::vector<std::string> split_list(const std::string& option, const std::string& text) {
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    entries.push_back(trimmed(text.substr(begin, end - begin)));
    if (entries.back().empty()) fail(ErrorClass::kUsage, "{} '{}' has an empty entry", option, text);
    begin = end + 1;
  }
  return entries;
}

}  // namespace shardtune
