#pragma once
#include "shardtune/comm/communicator.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// The `train` command: builds the run, evaluates, trains, saves, exports. Errors are AgreedError where all ranks know about
/// them and other exceptions where they do not. Collective.
void train(const options::ParseResult& parsed, comm::Communicator& communicator);

}  // namespace shardtune::train
