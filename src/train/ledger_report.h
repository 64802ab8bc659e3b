#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "shardtune/comm/communicator.h"
#include "shardtune/core/ledger.h"

namespace shardtune::train {

/// GB are 10^9 bytes.
inline double gigabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

/// With `decimals` digits behind the point, or more where that would show fewer than two that count.
std::string figure(double value, int decimals);

/// A line for each purpose that has bytes, and a heading; GB = 10^9 bytes.
std::string ledger_table(const LedgerPeak& peak);

/// {"bytes", "host_bytes", "phase", "at_peak": {purpose: bytes}, "own": {purpose: bytes}}.
nlohmann::ordered_json ledger_json(const LedgerPeak& peak);

/// Numbers and bytes of the collectives, by the names of comm::Counts.
nlohmann::ordered_json counts_json(const comm::Counts& counts);

}  // namespace shardtune::train
