#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace shardtune {

/// What kind of thing went wrong: the `class` field of the last log line and of metrics.jsonl.
enum class ErrorClass {
  kUsage,  ///< seen from options and config alone: exit code 2
  kBadModel,  ///< model folder, weights, tokenizer
  kBadData,  ///< training or evaluation data
  kBadStorage,  ///< file system: cannot read, write, create
  kBadCheckpoint,  ///< checkpoint missing, damaged or of another run
  kBadNode,  ///< device or machine
  kOutOfMemory,
  kNonFinite,  ///< loss or gradient norm is not a number
  kCommunication,  ///< MPI or NCCL
  kInternal,  ///< our own mistake
};

/// The name printed for a class, for example "bad_data".
std::string_view error_class_name(ErrorClass error_class);

/// Anything a user, a file or the machine can cause. The message says what, where, expected, found, and what to change, in
/// one line; control characters from files are escaped.
class Error : public std::runtime_error {
 public:
  Error(ErrorClass error_class, const std::string& message);

  ErrorClass error_class() const noexcept { return class_; }
  /// 2 for wrong usage, 1 for everything else.
  int exit_code() const noexcept { return class_ == ErrorClass::kUsage ? 2 : 1; }

 private:
  ErrorClass class_;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorClass error_class, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(error_class, fmt::format(format, std::forward<Args>(args)...));
}

/// One line: control characters, line breaks and invalid UTF-8 bytes are written as \n, \t, \xNN.
std::string escape_control(std::string_view text);

/// The nearest candidate by edit distance, or "" when none is near (more than a third of the letters differ).
template <typename Range>
std::string nearest_name(std::string_view name, const Range& candidates);

/// Levenshtein distance, ASCII case ignored.
std::size_t edit_distance(std::string_view a, std::string_view b);

template <typename Range>
std::string nearest_name(std::string_view name, const Range& candidates) {
  std::string best;
  std::size_t best_distance = name.size() / 3 + 2;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

namespace detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& message);
}

/// An assertion for our own mistakes, on in every build.
#define SHARDTUNE_CHECK(condition, ...)                                                                            \
  do {                                                                                                             \
    if (!(condition)) ::shardtune::detail::check_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace shardtune
