#include "value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardtune/core/error.h"

namespace shardtune::options {
namespace {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

/// Words for the same thing, of which a list has one at most.
const std::vector<std::vector<std::string_view>> kSameThing = {{"bfloat16", "bf16"},
                                                               {"float16", "fp16", "half"},
                                                               {"float32", "fp32", "float"},
                                                               {"cuda", "gpu"},
                                                               {"no", "none", "never", "off", "false"}};

bool holds(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The value of the list that was probably meant, or "". What has a meaning of its own is no slip of the finger: float16 is
/// one letter from bfloat16 and something else.
std::string probably_meant(const std::string& value, const std::vector<std::string_view>& names) {
  const bool is_word =
      std::any_of(names.begin(), names.end(), [&](auto name) { return edit_distance(name, value) == 0; });
  for (const auto& words : kSameThing) {
    const auto same = [&](std::string_view word) { return edit_distance(word, value) == 0; };
    if (is_word || std::none_of(words.begin(), words.end(), same)) continue;
    const auto found = std::find_if(words.begin(), words.end(), [&](auto word) { return holds(names, word); });
    return found == words.end() ? "" : std::string(*found);
  }
  return nearest_name(value, names);
}

[[noreturn]] void refuse(const Given& given) {
  std::string hint;
  if (const auto* choices = std::get_if<Choices>(&given.spec->allowed)) {
    const std::string meant = probably_meant(given.value, choices->names);
    if (!meant.empty()) hint = fmt::format("; did you mean '{}'?", meant);
  }
  fail(ErrorClass::kUsage, "{}: option {}: '{}' is not allowed; expected {}{}", given.place, given.spec->name,
       given.value, allowed_text(*given.spec), hint);
}

/// The whole text as one number, or nothing.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

template <typename Integer>
Integer parse_integer(const Given& given) {
  const auto& range = std::get<IntegerRange>(given.spec->allowed);
  const auto number = parse_number<Integer>(given.value);
  if (!number) refuse(given);
  const bool inside = std::cmp_greater_equal(*number, range.min) && std::cmp_less_equal(*number, range.max);
  if (!inside && !(range.also && std::cmp_equal(*number, *range.also))) refuse(given);
  return *number;
}

double parse_real(const Given& given) {
  const auto& range = std::get<NumberRange>(given.spec->allowed);
  const auto number = parse_number<double>(given.value);
  if (!number) refuse(given);
  // nan fails every comparison and inf that with the upper bound, so both are refused here.
  const bool above = range.above_min ? *number > range.min : *number >= range.min;
  const bool below = range.below_max ? *number < range.max : *number <= range.max;
  if ((!above || !below) && !(range.or_zero && *number == 0)) refuse(given);
  return *number;
}

/// The JSON library is asked itself: what it refused at the end of a run would cost the run.
bool json_can_hold(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::ignore) ==
         json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// "pissa_niter_16" for "pissa_niter_".
bool is_numbered(const std::string& value, std::string_view prefix) {
  if (prefix.empty() || !value.starts_with(prefix)) return false;
  const std::string_view digits = std::string_view(value).substr(prefix.size());
  return !digits.empty() && digits.size() <= 3 && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string parse_text(const Given& given) {
  const OptionSpec& spec = *given.spec;
  if (given.value.empty() && spec.required) refuse(given);
  if (const auto* choices = std::get_if<Choices>(&spec.allowed)) {
    if (holds(choices->names, given.value) || is_numbered(given.value, choices->numbered)) return given.value;
    // Where true and false are among the names, every spelling of them will do.
    const auto word = parse_boolean(given.value);
    if (word && holds(choices->names, "true")) return *word ? "true" : "false";
    refuse(given);
  }
  // Line breaks and broken UTF-8 in a name are slips of a script, and would garble logs and stored JSON.
  if (escape_control(given.value) != given.value || !json_can_hold(given.value)) refuse(given);
  if (std::holds_alternative<PathOrFlag>(spec.allowed)) {
    if (const auto word = parse_boolean(given.value)) return *word ? "true" : "";
  }
  RunOptions defaults;
  if (given.value.empty() && !value_text(spec, defaults).empty()) refuse(given);
  return given.value;
}

}  // namespace

std::optional<bool> parse_boolean(std::string_view text) {
  constexpr std::array<std::string_view, 4> kTrue = {"True", "true", "1", "yes"};
  constexpr std::array<std::string_view, 4> kFalse = {"False", "false", "0", "no"};
  if (std::find(kTrue.begin(), kTrue.end(), text) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), text) != kFalse.end()) return false;
  return std::nullopt;
}

void assign(const Given& given, RunOptions& options) {
  std::visit(Overloaded{
                 [](std::monostate) {},
                 [&](std::string* slot) { *slot = parse_text(given); },
                 [&](std::int64_t* slot) { *slot = parse_integer<std::int64_t>(given); },
                 [&](std::uint64_t* slot) { *slot = parse_integer<std::uint64_t>(given); },
                 [&](double* slot) { *slot = parse_real(given); },
                 [&](bool* slot) {
                   const auto value = parse_boolean(given.value);
                   if (!value) refuse(given);
                   *slot = *value;
                 },
             },
             given.spec->slot(options));
}

void set_default(const OptionSpec& spec, RunOptions& options) {
  RunOptions defaults;
  std::visit(Overloaded{
                 [](std::monostate) {},
                 [&](auto* slot) { *slot = *std::get<decltype(slot)>(spec.slot(defaults)); },
             },
             spec.slot(options));
}

std::string value_text(const OptionSpec& spec, RunOptions& options) {
  return std::visit(Overloaded{
                        [](std::monostate) { return std::string(); }, [](const std::string* slot) { return *slot; },
                        [](const bool* slot) { return std::string(*slot ? "True" : "False"); },
                        [](const auto* slot) { return fmt::format("{}", *slot); },  // doubles: shortest exact form
                    },
                    spec.slot(options));
}

std::string allowed_text(const OptionSpec& spec) {
  return std::visit(
      Overloaded{
          [&](const Text&) { return std::string(spec.required ? "text, not empty" : "text"); },
          [](const PathOrFlag&) { return std::string("a folder, True or False"); },
          [](const Flag&) { return std::string("True, true, 1, yes, False, false, 0 or no"); },
          [](const Choices& choices) {
            const std::string last = choices.numbered.empty() ? "" : fmt::format(", or {}N", choices.numbered);
            return fmt::format("{} or {}{}", fmt::join(choices.names.begin(), choices.names.end() - 1, ", "),
                               choices.names.back(), last);
          },
          [](const IntegerRange& range) {
            return fmt::format("an integer from {} to {} in digits{}", range.min, range.max,
                               range.also ? fmt::format(", or {}", *range.also) : "");
          },
          [](const NumberRange& range) {
            const bool open = range.max == std::numeric_limits<double>::max();
            return fmt::format("{}a finite number {} {}{}", range.or_zero ? "0 or " : "",
                               range.above_min ? "above"
                               : open          ? "not below"
                                               : "from",
                               range.min,
                               open ? "" : fmt::format("{} {}", range.below_max ? " to below" : " to", range.max));
          },
      },
      spec.allowed);
}

std::string_view placeholder(const OptionSpec& spec) {
  return std::visit(Overloaded{
                        [](const Text& text) { return text.placeholder; },
                        [](const PathOrFlag&) { return std::string_view("[FOLDER]"); },
                        [](const Flag&) { return std::string_view("[BOOLEAN]"); },
                        [](const Choices&) { return std::string_view("NAME"); },
                        [](const IntegerRange&) { return std::string_view("INTEGER"); },
                        [](const NumberRange&) { return std::string_view("NUMBER"); },
                    },
                    spec.allowed);
}

}  // namespace shardtune::options
