#pragma once
#include "shardtune/comm/communicator.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// The `merge` command: adds adapters to their base and writes the model, and tells on rank 0 what it did. Errors are AgreedError.
/// Collective.
void run_merge_command(const options::ParseResult& parsed, comm::Communicator& communicator);

}  // namespace shardtune::train
