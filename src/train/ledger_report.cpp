#include "ledger_report.h"

#include <fmt/format.h>

#include <cmath>

namespace shardtune::train {
namespace {

using nlohmann::ordered_json;

std::string name_of(std::size_t purpose) { return std::string(purpose_name(static_cast<Purpose>(purpose))); }

ordered_json by_purpose(const BytesByPurpose& bytes) {
  ordered_json object = ordered_json::object();
  for (std::size_t i = 0; i < kPurposes; ++i) object[name_of(i)] = bytes[i];
  return object;
}

}  // namespace

std::string figure(double value, int decimals) {
  if (value == 0 || std::abs(value) >= std::pow(10.0, 1 - decimals)) return fmt::format("{:.{}f}", value, decimals);
  return fmt::format("{:.2g}", value);
}

std::string ledger_table(const LedgerPeak& peak) {
  std::string text = fmt::format("  {:<20}{:>12}{:>12}   [GB]\n", "purpose", "at the peak", "at its own");
  for (std::size_t i = 0; i < kPurposes; ++i)
    if (peak.own[i] > 0)
      text +=
          fmt::format("  {:<20}{:>12.4f}{:>12.4f}\n", name_of(i), gigabytes(peak.at_peak[i]), gigabytes(peak.own[i]));
  return text;
}

ordered_json ledger_json(const LedgerPeak& peak) {
  return {{"bytes", peak.bytes},
          {"host_bytes", peak.host_bytes},
          {"phase", peak.phase},
          {"at_peak", by_purpose(peak.at_peak)},
          {"own", by_purpose(peak.own)}};
}

ordered_json counts_json(const comm::Counts& counts) {
  return {{"all_gathers", counts.all_gathers},
          {"all_gather_bytes", counts.all_gather_bytes},
          {"exchanges", counts.exchanges},
          {"exchange_bytes", counts.exchange_bytes},
          {"control", counts.control}};
}

}  // namespace shardtune::train
