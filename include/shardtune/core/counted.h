#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace shardtune {

/// "1 row", "2 rows": a number with the word in the form that goes with it. `many` defaults to `one` with an s.
template <typename Integer>
std::string counted(Integer number, std::string_view one, std::string_view many = {}) {
  if (number == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", number, one) : fmt::format("{} {}", number, many);
}

}  // namespace shardtune
