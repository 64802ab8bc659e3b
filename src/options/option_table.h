#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shardtune/options/run_options.h"

namespace shardtune::options {

/// Free text; the placeholder is what --help shows for the value.
struct Text {
  std::string_view placeholder;
};
/// A path, or a boolean word: True (or the option alone) stands for "choose it yourself", False for none.
struct PathOrFlag {};
struct Flag {};
struct Choices {
  std::vector<std::string_view> names;
  std::string_view numbered =
      {};  ///< this with a whole number from 0 to 999 behind it is a choice as well; empty: none
};
/// [min, max], and one value outside of it with a meaning of its own.
struct IntegerRange {
  std::int64_t min;
  std::uint64_t max;
  std::optional<std::int64_t> also = std::nullopt;
};
/// Finite numbers from min to max; the two switches exclude the bounds themselves. `or_zero`: 0 is allowed as well and has a
/// meaning of its own.
struct NumberRange {
  double min = 0;
  double max = std::numeric_limits<double>::max();
  bool above_min = false;
  bool below_max = false;
  bool or_zero = false;
};
using Allowed = std::variant<Text, PathOrFlag, Flag, Choices, IntegerRange, NumberRange>;

/// Where in RunOptions the value goes; monostate for --help and --version.
using Slot = std::variant<std::monostate, std::string*, std::int64_t*, std::uint64_t*, double*, bool*>;

enum class Scope { kEverywhere, kNotInFile, kCommandLineOnly };

/// An option that does nothing unless `option` has one of `values` (in the text form of EffectiveOption).
struct Needs {
  std::string_view option;
  std::vector<std::string_view> values;
};

/// One option. Defaults are not here: they are those of the option structs.
struct OptionSpec {
  std::string_view name;
  std::string_view group;
  std::string_view unit;
  Allowed allowed;
  std::function<Slot(RunOptions&)> slot;
  std::string_view help;
  bool required = false;  ///< of `train`; check_required() has those of the others
  std::optional<Needs> needs = std::nullopt;
  std::vector<std::string_view> older_names = {};  ///< other tools' names, used for suggestions only
  Scope scope = Scope::kEverywhere;
  std::string_view default_text = {};  ///< for --help, where the value alone would not tell what happens
  std::string_view command = {};  ///< the only command that has it; empty: see takes()
};

/// Every option, in the order of --help. Parsing, help, documentation, suggestions and checks all read this table.
const std::vector<OptionSpec>& option_table();

/// The commands that have the option.
std::vector<std::string_view> commands_of(const OptionSpec& spec);
/// Whether the command has the option.
bool takes(std::string_view command, const OptionSpec& spec);

/// The row of an option; null when there is none.
const OptionSpec* find_option(std::string_view name);

/// The known name nearest to an unknown one, "" when none is near. Older names lead to the current one.
std::string nearest_option(std::string_view unknown);

/// Sub-commands of the program.
const std::vector<std::string_view>& commands();

}  // namespace shardtune::options
