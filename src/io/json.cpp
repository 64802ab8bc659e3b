#include "shardtune/io/json.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "shardtune/io/files.h"
#include "transfer.h"

namespace shardtune::io {
namespace {

using nlohmann::json;

/// Walks over the text and tells through a shared place how far the parser has read: the only way to name a position in
/// errors that the library itself does not see.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* at, const char** place) : at_(at), place_(place) {}
  reference operator*() const { return *at_; }
  TrackedIterator& operator++() {
    *place_ = ++at_;
    return *this;
  }
  TrackedIterator operator++(int) {
    TrackedIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackedIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** place_;
};

/// "line 3, column 7 (byte 120)" of the byte before `offset`; "column 7" in a text of one line, whose number in its file is
/// for the caller to tell.
std::string position(std::string_view text, std::size_t offset) {
  if (text.find('\n') == std::string_view::npos) return fmt::format("column {}", offset);
  const std::string_view before = text.substr(0, offset);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("line {}, column {} (byte {})", lines + 1, offset - line_start, offset);
}

/// Builds the value and enforces what the library does not: depth, number of values, unique keys.
class LimitedBuilder final : public json::json_sax_t {
 public:
  LimitedBuilder(std::string_view text, const char* const& read_to, const std::string& where, ErrorClass error_class,
                 const JsonLimits& limits)
      : text_(text), read_to_(read_to), where_(where), class_(error_class), limits_(limits) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(json::number_integer_t value) override { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) override { return add(value); }
  bool number_float(json::number_float_t value, const std::string& /*text*/) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t& /*value*/) override { refuse("binary values are not JSON"); }
  bool start_object(std::size_t /*elements*/) override { return open(json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto& object = *open_.back();
    if (object.contains(name)) refuse(fmt::format("the name {} is given twice in one object", detail::in_quotes(name)));
    slot_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t /*offset*/, const std::string& /*last_token*/, const json::exception& error) override {
    std::string_view text = error.what();
    for (const std::string_view mark : {"] ", ": "}) {  // the library's own error number and position
      const std::size_t cut = text.find(mark);
      if (cut != std::string_view::npos && cut < 60) text.remove_prefix(cut + mark.size());
    }
    refuse(fmt::format("not valid JSON: {}{}", text.substr(0, 300), text.size() > 300 ? "..." : ""));
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    const auto offset = static_cast<std::size_t>(read_to_ - text_.data());
    fail(class_, "{}: {}: {}", where_, position(text_, offset), reason);
  }

  template <typename Value>
  json* place(Value&& value) {
    if (++values_ > limits_.max_values) refuse(fmt::format("more than the {} values allowed", limits_.max_values));
    if (open_.empty()) {
      root_ = std::forward<Value>(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::forward<Value>(value));
      return &open_.back()->back();
    }
    *slot_ = std::forward<Value>(value);
    return slot_;
  }

  template <typename Value>
  bool add(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }

  bool open(json container) {
    if (open_.size() >= static_cast<std::size_t>(limits_.max_depth))
      refuse(fmt::format("nested deeper than the {} levels allowed", limits_.max_depth));
    // Pointers stay valid: a container gets no other element before this one is closed.
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const char* const& read_to_;
  const std::string& where_;
  ErrorClass class_;
  const JsonLimits& limits_;
  json root_;
  json* slot_ = nullptr;  ///< value of the key read last
  std::vector<json*> open_;
  std::uint64_t values_ = 0;
};

/// Length of the valid sequence that starts at `text`, 0 when it is not valid. Table 3-7 of the Unicode standard.
std::size_t sequence_length(const unsigned char* text, std::size_t left) {
  const unsigned char lead = text[0];
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (left < length) return 0;
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (text[1] < low || text[1] > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((text[i] & 0xC0) != 0x80) return 0;
  return length;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(bytes + i, text.size() - i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

json parse_json(std::string_view text, const std::string& where, ErrorClass error_class, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    fail(error_class, "{}: {} bytes of JSON, more than the {} allowed", where, text.size(), limits.max_bytes);
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    fail(error_class, "{}: {}: invalid UTF-8 (byte 0x{:02x})", where, position(text, bad + 1),
         static_cast<unsigned char>(text[bad]));
  const char* read_to = text.data();
  LimitedBuilder builder(text, read_to, where, error_class, limits);
  json::sax_parse(TrackedIterator(text.data(), &read_to), TrackedIterator(text.data() + text.size(), &read_to),
                  &builder);
  return builder.take();
}

json read_json_file(const std::filesystem::path& path, ErrorClass error_class, const JsonLimits& limits) {
  return parse_json(read_text_file(path, error_class, limits.max_bytes), path.string(), error_class, limits);
}

}  // namespace shardtune::io
