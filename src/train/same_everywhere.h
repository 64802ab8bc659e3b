#pragma once
#include "shardtune/options/run_options.h"
#include "shardtune/train/generate.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

/// Refuses a run whose ranks were started with different option values (environment or config file of one node, say): names
/// the first option that differs from rank 0's. AgreedError(kUsage). Collective.
void check_same_options(const options::ParseResult& parsed, comm::Communicator& communicator);

/// The same for what the ranks read from files: model, adapter settings and rows. Ranks that disagree here would wait for each
/// other in different collectives, or train on rows of different data sets. AgreedError. Collective.
void check_same_inputs(const Run& run);

/// Refuses to continue other prompts than rank 0 read. AgreedError(kBadData). Collective.
void check_same_requests(comm::Communicator& communicator, const std::vector<Request>& requests);

}  // namespace shardtune::train
