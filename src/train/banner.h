#pragma once
#include <string>
#include <utility>
#include <vector>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Ranks, types, shape of the model, and what there is to say about its files: lines.
std::string describe_model(const Run& run);
/// Rank, scale and modules of the adapter, a line; "" without one.
std::string describe_adapter(const Run& run);

/// The start of the log: options, model, what is trained, data with everything that was cut or left out. Rank 0.
void print_banner(const Run& run, const options::ParseResult& parsed);

/// Settings that a resumed run must share: they decide which row comes when and what a step means.
std::vector<std::pair<std::string, std::string>> fixed_settings(const Run& run);

/// The options that did not keep their default, one "name = value" per line.
std::string given_options(const options::ParseResult& parsed);

}  // namespace shardtune::train
