#pragma once
#include "shardtune/comm/communicator.h"
#include "shardtune/options/run_options.h"

namespace shardtune::train {

/// The `evaluate` command: loss, perplexity and token accuracy of the model, with or without an adapter, on a data set. Prints
/// one table and writes eval_results.json into --output_dir when that is given. Nothing is held beside the weights. Errors as of
/// train(). Collective.
void run_evaluate_command(const options::ParseResult& parsed, comm::Communicator& communicator);

}  // namespace shardtune::train
