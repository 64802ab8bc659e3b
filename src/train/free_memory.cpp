#include "free_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace shardtune::train {
namespace {

/// The number in a file of the control group; none when there is no such file, or it says "max".
std::optional<std::int64_t> first_number(const char* path) {
  std::ifstream in(path);
  std::int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// Lines "NAME NUMBER" of a file: the sum of the numbers whose name is wanted.
std::int64_t sum_of(const char* path, std::initializer_list<const char*> wanted) {
  std::ifstream in(path);
  std::int64_t sum = 0, number = 0;
  for (std::string name; in >> name >> number;)
    if (std::ranges::find(wanted, name) != wanted.end()) sum += number;
  return sum;
}

}  // namespace

std::int64_t free_memory_bytes(int ranks_on_node) {
  std::int64_t free = std::numeric_limits<std::int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    std::int64_t kib = 0;
    meminfo >> kib;
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") free = kib * 1024;
  }
  const auto limit = first_number("/sys/fs/cgroup/memory.max"), used = first_number("/sys/fs/cgroup/memory.current");
  const std::int64_t cache = sum_of("/sys/fs/cgroup/memory.stat", {"active_file", "inactive_file"});
  if (limit && used) free = std::min(free, *limit - *used + cache);
  return std::max<std::int64_t>(free, 0) / ranks_on_node;
}

}  // namespace shardtune::train
