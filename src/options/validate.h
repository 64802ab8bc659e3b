#pragma once
#include <map>
#include <string_view>

#include "sources.h"

namespace shardtune::options {

/// The value that counts of every option given anywhere, by name.
using Winners = std::map<std::string_view, Given>;

/// Error(kUsage) naming all required options that are missing.
void check_required(const Winners& winners, std::string_view command);

/// Error(kUsage) when explicitly given options contradict each other or one of them would do nothing, unless a stronger place
/// has turned it off: see turn_off().
void check_combinations(Winners& winners, RunOptions& options);

}  // namespace shardtune::options
