#pragma once
#include <string>
#include <vector>

/// Lists as users write them on a command line or in a file.
namespace shardtune {

/// Without blanks at both ends; "" when there is nothing else.
std::string trimmed(const std::string& text);

/// The entries of a comma-separated list, without blanks around them and none of them empty. `option` begins the message of
/// Error(kUsage).
std::vector<std::string> split_list(const std::string& option, const std::string& text);

}  // namespace shardtune
