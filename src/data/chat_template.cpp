#include "chat_template.h"

#include <cctype>
#include <vector>

namespace shardtune::data {
namespace {

constexpr char kText = '"';  ///< first letter of a token that holds a constant text

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Reads the quoted text at `at` and leaves `at` behind it. Unknown escapes stay as written.
std::string read_quoted(std::string_view body, std::size_t& at) {
  const char quote = body[at++];
  std::string text(1, kText);
  while (at < body.size() && body[at] != quote) {
    if (body[at] == '\\' && at + 1 < body.size()) {
      const char c = body[at + 1];
      if (c == 'n') text += '\n';
      else if (c == 't') text += '\t';
      else if (c == '\'' || c == '"' || c == '\\') text += c;
      else text += body.substr(at, 2);
      at += 2;
    } else {
      text += body[at++];
    }
  }
  ++at;
  return text;
}

std::vector<std::string> tokens_of(std::string_view body) {
  std::vector<std::string> tokens;
  std::size_t at = 0;
  while (at < body.size()) {
    const char c = body[at];
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++at;
    } else if (c == '\'' || c == '"') {
      tokens.push_back(read_quoted(body, at));
    } else if (is_name_char(c)) {
      std::size_t end = at;
      while (end < body.size() && is_name_char(body[end])) ++end;
      tokens.emplace_back(body.substr(at, end - at));
      at = end;
    } else {
      const bool two =
          at + 1 < body.size() && body[at + 1] == '=' && std::string_view("=!<>").find(c) != std::string_view::npos;
      tokens.emplace_back(body.substr(at, two ? 2 : 1));
      at += two ? 2 : 1;
    }
  }
  return tokens;
}

/// a.b becomes a['b'], and 'x' + 'y' becomes 'xy'.
std::vector<std::string> simplify(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool member = tokens[i] == "." && i + 1 < tokens.size() && is_name_char(tokens[i + 1][0]);
    if (member) {
      out.insert(out.end(), {"[", kText + tokens[++i], "]"});
      continue;
    }
    const std::size_t n = out.size();
    if (tokens[i][0] == kText && n >= 2 && out[n - 1] == "+" && out[n - 2][0] == kText) {
      out.pop_back();
      out.back() += tokens[i].substr(1);
      continue;
    }
    out.push_back(tokens[i]);
  }
  return out;
}

std::size_t blanks_at_end(std::string_view text, std::string_view blanks) {
  const std::size_t last = text.find_last_not_of(blanks);
  return last == std::string_view::npos ? text.size() : text.size() - last - 1;
}

constexpr std::string_view kAllBlanks = " \t\r\n\v\f";

/// Data before a tag: without what the tag takes away in front of itself. `rest_of_line`: the data begins where a tag ended.
std::string_view trim_before_tag(std::string_view data, bool dash, bool block, bool rest_of_line) {
  if (dash) return data.substr(0, data.size() - blanks_at_end(data, kAllBlanks));
  if (!block) return data;
  const std::string_view cut = data.substr(0, data.size() - blanks_at_end(data, " \t"));
  const bool line_start = cut.empty() ? !rest_of_line : cut.back() == '\n';
  return line_start ? cut : data;
}

/// End of the tag body that starts at `at`: the offset of `close` outside quotes.
std::size_t find_close(std::string_view text, std::size_t at, std::string_view close, bool quotes) {
  while (at < text.size() && text.substr(at, 2) != close) {
    if (quotes && (text[at] == '\'' || text[at] == '"')) read_quoted(text, at);
    else ++at;
  }
  return at;
}

void append(std::string& out, char kind, std::string_view text) {
  if (text.empty()) return;
  out += '\x1E';
  out += kind;
  out += text;
}

}  // namespace

std::string canonical_template(std::string_view text) {
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);  // Jinja drops one newline at the end
  std::string out;
  std::string data;
  bool rest_of_line = false;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view open = text.substr(at, 2);
    if (open != "{{" && open != "{%" && open != "{#") {
      data += text[at++];
      continue;
    }
    const bool block = open != "{{";
    std::size_t body = at + 2;
    const bool dash = body < text.size() && text[body] == '-';
    if (dash) ++body;
    append(out, 'D', trim_before_tag(data, dash, block, rest_of_line));
    data.clear();
    const std::string_view close = open == "{{" ? "}}" : open == "{%" ? "%}" : "#}";
    std::size_t end = find_close(text, body, close, open != "{#");
    const bool end_dash = end > body && end < text.size() && text[end - 1] == '-';
    if (open != "{#") {
      std::string inside;
      for (const std::string& token : simplify(tokens_of(text.substr(body, (end_dash ? end - 1 : end) - body))))
        inside += '\x1F' + token;
      append(out, open[1], inside);
    }
    at = end + 2 < text.size() ? end + 2 : text.size();
    rest_of_line = true;
    if (end_dash) {
      while (at < text.size() && kAllBlanks.find(text[at]) != std::string_view::npos) ++at;
    } else if (block && at < text.size() && text[at] == '\n') {
      ++at;
      rest_of_line = false;
    }
  }
  append(out, 'D', data);
  return out;
}

}  // namespace shardtune::data
