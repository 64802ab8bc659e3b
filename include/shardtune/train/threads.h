#pragma once

namespace shardtune::train {

/// Threads for one of `ranks_on_node` ranks that may run on `allowed` of the node's `online` processors: all it is bound to, or its
/// share when it is not bound. At least 1.
int thread_share(int allowed, int online, int ranks_on_node);

/// Sets the number of threads of tensor operations from the processors this process may use. OMP_NUM_THREADS, when set, wins.
/// Without this every rank of a node would start a thread per core.
void choose_threads(int ranks_on_node);

}  // namespace shardtune::train
