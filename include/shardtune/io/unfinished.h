#pragma once
#include <filesystem>
#include <vector>

namespace shardtune::io {

/// What AtomicFile or AtomicFolder is writing beside `target` in its name, in another process, or left there when it was killed.
/// Sorted; empty where the folder cannot be listed.
std::vector<std::filesystem::path> unfinished_siblings(const std::filesystem::path& target);

}  // namespace shardtune::io
