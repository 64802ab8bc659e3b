#pragma once
#include <string>

namespace shardtune::options {

/// The text of --help: how to run, then all options by group with units and defaults, at most 100 columns wide.
std::string help_text();

/// "shardtune VERSION".
std::string version_text();

/// The page docs/options.md.
std::string help_markdown();

}  // namespace shardtune::options
