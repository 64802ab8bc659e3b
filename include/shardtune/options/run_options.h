#pragma once
#include <string>
#include <vector>

#include "shardtune/adapters/options.h"
#include "shardtune/data/options.h"
#include "shardtune/model/options.h"
#include "shardtune/optim/options.h"
#include "shardtune/train/options.h"

namespace shardtune::options {

/// All options of one run. Every module owns its part; this module only fills them.
struct RunOptions {
  std::string command;  ///< "train", "evaluate", ...
  model::ModelOptions model;
  data::DataOptions data;
  adapters::AdapterOptions adapter;
  optim::OptimOptions optim;
  train::TrainOptions train;
};

/// One effective option: what --help, the start banner and the checkpoint show.
struct EffectiveOption {
  std::string name;
  std::string value;   ///< text form that parses back to the same value
  std::string source;  ///< "default" | "command line" | "environment" | "config FILE"
};

struct ParseResult {
  RunOptions options;
  std::vector<EffectiveOption> effective;  ///< every option of the command, in help order
  std::string help;                        ///< not empty: print this and exit 0 (--help, --version)
};

/// Reads the command line (argv[1] is the sub-command) over the environment (SHARDTUNE_<NAME>) over the INI file of
/// --config. Unknown keys, wrong values and contradictions are Error(kUsage) naming the option, the value, where it came
/// from and what is allowed or the nearest known name. Nothing is repaired silently.
ParseResult parse_options(int argc, const char* const* argv, const char* const* environment);

}  // namespace shardtune::options
