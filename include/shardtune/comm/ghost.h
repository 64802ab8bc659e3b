#pragma once
#include <memory>

#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

/// Plays rank `rank` of `ranks`, with `ranks_per_node` consecutive ranks on each node, and moves nothing: buffers may lie on
/// the Meta device (spans without memory). Counts as the real ones do, and tells the work listener. What control calls
/// gather is this rank's value for every rank: all ranks are alike. Error(kUsage) when there is no such rank.
std::unique_ptr<Communicator> make_ghost_communicator(int rank, int ranks, int ranks_per_node);

}  // namespace shardtune::comm
