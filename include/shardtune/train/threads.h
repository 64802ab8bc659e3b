#pragma once
#include "shardtune/comm/communicator.h"

namespace shardtune::train {

/// Threads for a rank that may run on `allowed` processors which `sharing` ranks of its node, itself included, have in
/// common. At least 1.
int thread_share(int allowed, int sharing);

/// Keeps freed memory for the next tensor instead of giving it back to the system, page by page, in every layer: the step
/// frees and takes the same sizes again. Before the first tensor. Settings of the allocator in the environment win.
void keep_freed_memory();

/// Sets the number of threads of tensor operations from the processors this process may use and how many ranks of the node
/// use the same ones. OMP_NUM_THREADS, when set, wins. Without this every rank of a node would start a thread per core.
/// Collective.
void choose_threads(comm::Communicator& communicator);

}  // namespace shardtune::train
