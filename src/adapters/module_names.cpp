#include "module_names.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace shardtune::adapters {

bool is_named(const std::string& module, const std::string& entry) {
  return module == entry ||
         (module.size() > entry.size() && module.ends_with(entry) && module[module.size() - entry.size() - 1] == '.');
}

bool is_name_list(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '-' || c == ',' || c == ' ' || c == '\t';
  });
}

Regex compile_as_python(const std::string& option, const std::string& pattern) {
  Regex regex = Regex::compile(pattern, option, ErrorClass::kUsage);
  for (std::size_t at = 0; at + 1 < pattern.size(); ++at) {
    const std::string_view here = std::string_view(pattern).substr(at, 2);
    if (here == "{,")
      fail(ErrorClass::kUsage, "{}: '{{,' at byte {} of the pattern is not followed; write '{{0,'", option, at);
    if (here == "[:")
      fail(ErrorClass::kUsage, "{}: '[:' at byte {} of the pattern is not followed; write the letters out, as in [a-z]",
           option, at);
    if (here[0] == '\\') ++at;
  }
  return regex;
}

}  // namespace shardtune::adapters
