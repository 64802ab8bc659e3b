#include "shardtune/options/ini_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shardtune/core/error.h"
#include "sources.h"

namespace shardtune::options {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

/// Without a comment: '#' or ';' at the start of the line or after a blank. Inside a word they are ordinary characters.
std::string_view without_comment(std::string_view line) {
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool mark = line[i] == '#' || line[i] == ';';
    if (mark && (i == 0 || kBlanks.find(line[i - 1]) != std::string_view::npos)) return line.substr(0, i);
  }
  return line;
}

void read_line(std::string_view raw, const std::string& place, std::vector<IniLine>& list) {
  const std::string_view line = trim(without_comment(raw));
  if (line.empty()) return;
  if (line.front() == '[') {
    // Sections group lines for the reader; names are unique without them.
    if (line.back() != ']' || line.size() < 3)
      fail(ErrorClass::kUsage, "{}: '{}' is not a section; expected [NAME]", place, line);
    return;
  }
  const auto equals = line.find('=');
  if (equals == std::string_view::npos || equals == 0)
    fail(ErrorClass::kUsage, "{}: '{}' is not an option line; expected NAME = VALUE", place, line);
  const std::string_view value = trim(line.substr(equals + 1));
  if (!value.empty() && (value.front() == '"' || value.front() == '\''))
    fail(ErrorClass::kUsage, "{}: the value {} is quoted; write it without quotes", place, value);
  list.push_back({std::string(trim(line.substr(0, equals))), std::string(value), place});
}

}  // namespace

std::vector<IniLine> read_ini_lines(const std::string& path, std::string_view what) {
  std::error_code ignored;  // a path that cannot be examined cannot be opened either, which is reported below
  if (std::filesystem::is_directory(path, ignored))
    fail(ErrorClass::kUsage, "{}: '{}' is a folder; expected an INI file", what, path);
  // A pipe gives its lines to one rank and leaves the others waiting.
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    fail(ErrorClass::kUsage, "{}: '{}' is not a regular file; every rank reads it, so save it first", what, path);
  errno = 0;
  std::ifstream file(path);
  if (!file) fail(ErrorClass::kUsage, "{}: cannot open '{}': {}", what, path, std::strerror(errno));
  std::vector<IniLine> list;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string place = fmt::format("{}:{}", path, number);
    if (number == 1 && line.starts_with("\xEF\xBB\xBF"))
      fail(ErrorClass::kUsage, "{}: the file begins with a byte order mark; save it as plain UTF-8", place);
    read_line(line, place, list);
  }
  if (file.bad()) fail(ErrorClass::kUsage, "{}: cannot read '{}': {}", what, path, std::strerror(errno));
  return list;
}

std::vector<Given> read_ini_file(const std::string& path) {
  std::vector<Given> list;
  for (const IniLine& line : read_ini_lines(path, "option config")) {
    const OptionSpec& spec = known_option(line.name, Scope::kEverywhere, line.place, "");
    add_once(list, Given{&spec, Origin::kFile, line.value, fmt::format("config {}", path), line.place});
  }
  return list;
}

}  // namespace shardtune::options
