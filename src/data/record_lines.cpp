#include "record_lines.h"

#include <nlohmann/json.hpp>

#include "line_reader.h"
#include "shardtune/core/error.h"
#include "shardtune/io/json.h"
#include "utf8.h"

namespace shardtune::data {
namespace {

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

void for_each_record(
    const std::filesystem::path& file,
    const std::function<void(const nlohmann::json& record, const std::string& where, std::int64_t line)>& visit) {
  LineReader lines(file);
  while (lines.next()) {
    if (is_blank(lines.line())) continue;
    const std::string where = fmt::format("{} line {}", file.string(), lines.number());
    const std::size_t valid = utf8_error_offset(lines.line());
    if (valid != lines.line().size())
      fail(ErrorClass::kBadData, "{}: not UTF-8 at byte {} of the line; convert the file to UTF-8", where, valid + 1);
    if (lines.line().starts_with("\xEF\xBB\xBF"))
      fail(ErrorClass::kBadData, "{}: begins with a byte order mark; only the start of the file may have one", where);
    const io::JsonLimits limits{
        .max_bytes = LineReader::kMaxLineBytes, .max_depth = 64, .max_values = LineReader::kMaxLineBytes};
    visit(io::parse_json(lines.line(), where, ErrorClass::kBadData, limits), where, lines.number());
  }
}

}  // namespace shardtune::data
