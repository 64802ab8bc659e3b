#include "free_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace shardtune::train {
namespace {

namespace fs = std::filesystem;

/// The number in a file of a control group; none when there is no such file, or it says "max".
std::optional<std::int64_t> first_number(const fs::path& path) {
  std::ifstream in(path);
  std::int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// Lines "NAME NUMBER" of a file: the sum of the numbers whose name is wanted.
std::int64_t sum_of(const fs::path& path, std::initializer_list<std::string_view> wanted) {
  std::ifstream in(path);
  std::int64_t sum = 0, number = 0;
  for (std::string name; in >> name >> number;)
    if (std::ranges::find(wanted, name) != wanted.end()) sum += number;
  return sum;
}

/// What is left in one group; its file cache goes when memory is wanted. Version 2 or version 1 of the interface.
std::optional<std::int64_t> left_in(const fs::path& group, bool version2) {
  const auto limit = first_number(group / (version2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = first_number(group / (version2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const fs::path statistics = group / "memory.stat";
  const std::int64_t cache = version2 ? sum_of(statistics, {"active_file", "inactive_file"})
                                      : sum_of(statistics, {"total_active_file", "total_inactive_file"});
  return *limit - *used + cache;
}

}  // namespace

std::int64_t left_in_groups(const fs::path& mounted, const fs::path& own_groups) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  std::ifstream in(own_groups);  // lines NUMBER:CONTROLLERS:/PATH, without controllers in version 2
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
    const fs::path root = version2 ? mounted : mounted / "memory";
    // Every group up to the root may have a limit. In a container the path may be that of the host: the root is then its own.
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
      left = std::min(left, left_in(root / group, version2).value_or(left));
      if (group.empty()) break;
    }
  }
  return left;
}

std::int64_t free_memory_bytes(int ranks_on_node) {
  std::int64_t free = std::numeric_limits<std::int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    std::int64_t kib = 0;
    meminfo >> kib;
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") free = kib * 1024;
  }
  free = std::min(free, left_in_groups("/sys/fs/cgroup", "/proc/self/cgroup"));
  return std::max<std::int64_t>(free, 0) / ranks_on_node;
}

}  // namespace shardtune::train
