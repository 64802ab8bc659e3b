#pragma once
#include <set>
#include <string>
#include <vector>

#include "shardtune/adapters/options.h"
#include "shardtune/data/options.h"
#include "shardtune/export/options.h"
#include "shardtune/fsdp/options.h"
#include "shardtune/model/options.h"
#include "shardtune/optim/options.h"
#include "shardtune/quant/options.h"
#include "shardtune/train/options.h"

namespace shardtune::options {

/// All options of one run. Every module owns its part; this module only fills them.
struct RunOptions {
  std::string command;  ///< train | plan | merge | evaluate | generate
  std::string config;  ///< INI file the options were read from, "" for none
  model::ModelOptions model;
  data::DataOptions data;
  quant::QuantOptions quant;
  adapters::AdapterOptions adapter;
  fsdp::FsdpOptions fsdp;
  optim::OptimOptions optim;
  train::TrainOptions train;
  train::PlanOptions plan;
  exporting::MergeOptions merge;
  train::GenerateOptions generate;
};

/// One effective option: what --help, the start banner and the checkpoint show.
struct EffectiveOption {
  std::string name;
  std::string value;  ///< text form that parses back to the same value
  /// "default" | "command line" | "environment" | "config FILE", the last two with ", without effect" where that is so.
  std::string source;
  /// False for a value whose condition a stronger place has turned off: the run has the default, and only lists show it.
  bool in_effect = true;

  bool operator==(const EffectiveOption&) const = default;
};

struct ParseResult {
  RunOptions options;
  std::vector<EffectiveOption> effective;  ///< every option of the command, in help order
  std::string help;  ///< not empty: print this and exit 0 (--help, --version, help-markdown); the rest is unset
};

/// Reads the command line (argv[1] is the sub-command) over the environment (SHARDTUNE_<NAME>) over the INI file of
/// --config. Unknown keys, wrong values and contradictions are Error(kUsage) naming the option, the value, where it came
/// from and what is allowed or the nearest known name. Nothing is repaired silently: an option whose condition a stronger place
/// turns off has its default, and is listed as without effect. `environment` is a list of
/// "NAME=VALUE" strings that ends with a null pointer (the C library's `environ`), or a null pointer for none. Only the
/// INI file is opened; no other path is looked at. Touches no global state; every rank may call it on its own.
ParseResult parse_options(int argc, const char* const* argv, const char* const* environment);

/// Whether the value was given somewhere and counts.
bool is_given(const EffectiveOption& option);

/// Names of the options that are given.
std::set<std::string> given_names(const std::vector<EffectiveOption>& options);

/// The options for the start banner: one line "  name  value  (source)" each, columns aligned, in the given order. A default
/// that says nothing by itself is told in words.
std::string format_effective(const std::vector<EffectiveOption>& options);

/// The options of a run that are given, as the text of an INI file in the given order; those of
/// `shardtune plan` alone are left out. A value that no INI file can hold becomes a comment that says so.
std::string effective_as_ini(const std::vector<EffectiveOption>& options);

/// The options as one JSON object {name: {"value": text, "source": text}} in the given order, to be stored with the run.
/// Values stay texts, so 64-bit seeds and fp64 rates survive any JSON reader.
std::string effective_as_json(const std::vector<EffectiveOption>& options);

}  // namespace shardtune::options
