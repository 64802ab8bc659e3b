#pragma once
#include "shardtune/comm/communicator.h"

namespace shardtune::train {

/// Threads for a rank that may run on `allowed` processors which `sharing` ranks of its node, itself included, have in common. At
/// least 1.
int thread_share(int allowed, int sharing);

/// Sets the number of threads of tensor operations from the processors this process may use and how many ranks of the node use the
/// same ones. OMP_NUM_THREADS, when set, wins. Without this every rank of a node would start a thread per core. Collective.
void choose_threads(comm::Communicator& communicator);

}  // namespace shardtune::train
