#pragma once
#include <cstdint>
#include <filesystem>

namespace shardtune::train {

/// Bytes a rank may still take: what the system calls available on the node, or what is left in the control groups where
/// that is less, divided by the ranks of the node.
std::int64_t free_memory_bytes(int ranks_on_node);

/// What the control groups that a file like /proc/self/cgroup names leave, under `mounted` (/sys/fs/cgroup): the least of
/// each group and those above it, file cache counted as free. The largest number where nothing limits memory. Versions 1 and
/// 2.
std::int64_t left_in_groups(const std::filesystem::path& mounted, const std::filesystem::path& own_groups);

}  // namespace shardtune::train
