#pragma once
#include <cstdint>

namespace shardtune::train {

/// Bytes a rank may still take: what the system calls available on the node, or what is left in the control group where that is less,
/// divided by the ranks of the node. The group's file cache counts as free: it goes when memory is wanted.
std::int64_t free_memory_bytes(int ranks_on_node);

}  // namespace shardtune::train
