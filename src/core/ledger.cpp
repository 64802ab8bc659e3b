#include "shardtune/core/ledger.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "shardtune/core/error.h"

namespace shardtune {
namespace {

bool on_host(Purpose purpose) { return purpose == Purpose::kHostPinned || purpose == Purpose::kHostShared; }

std::size_t index_of(Purpose purpose) { return static_cast<std::size_t>(purpose); }

std::atomic<Purpose> current_purpose{Purpose::kOther};

}  // namespace

std::string_view purpose_name(Purpose purpose) {
  switch (purpose) {
    case Purpose::kOther: return "other";
    case Purpose::kWeightShards: return "weight_shards";
    case Purpose::kGatherBuffers: return "gather_buffers";
    case Purpose::kKeptActivations: return "kept_activations";
    case Purpose::kStream: return "stream";
    case Purpose::kWorkspace: return "workspace";
    case Purpose::kLoss: return "loss";
    case Purpose::kGradients: return "gradients";
    case Purpose::kOptimizer: return "optimizer";
    case Purpose::kDequantised: return "dequantised";
    case Purpose::kTables: return "tables";
    case Purpose::kResult: return "result";
    case Purpose::kHostPinned: return "host_pinned";
    case Purpose::kHostShared: return "host_shared";
  }
  fail(ErrorClass::kInternal, "unknown purpose {}", index_of(purpose));
}

void Ledger::add(Purpose purpose, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::int64_t& live = live_[index_of(purpose)];
  live += bytes;
  peak_.own[index_of(purpose)] = std::max(peak_.own[index_of(purpose)], live);
  if (on_host(purpose)) {
    host_ += bytes;
    peak_.host_bytes = std::max(peak_.host_bytes, host_);
    return;
  }
  device_ += bytes;
  if (device_ <= peak_.bytes) return;
  peak_.bytes = device_;
  peak_.at_peak = live_;
  peak_.phase = phase_;
}

void Ledger::move(Purpose from, Purpose to, std::int64_t bytes) {
  SHARDTUNE_CHECK(on_host(from) == on_host(to), "{} bytes cannot move between host and device", bytes);
  const std::lock_guard lock(mutex_);
  live_[index_of(from)] -= bytes;
  std::int64_t& live = live_[index_of(to)];
  live += bytes;
  peak_.own[index_of(to)] = std::max(peak_.own[index_of(to)], live);
}

BytesByPurpose Ledger::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

LedgerPeak Ledger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void Ledger::start_window() {
  const std::lock_guard lock(mutex_);
  peak_ = {.bytes = device_, .host_bytes = host_, .at_peak = live_, .own = live_, .phase = phase_};
}

void Ledger::set_phase(std::string phase) {
  const std::lock_guard lock(mutex_);
  phase_ = std::move(phase);
}

Ledger& ledger() {
  // Never destroyed: tensors with static lifetime are released after it would be.
  static Ledger& instance = *new Ledger;
  return instance;
}

LedgerScope::LedgerScope(Purpose purpose) : before_(current_purpose.exchange(purpose)) {}
LedgerScope::~LedgerScope() { current_purpose = before_; }
Purpose LedgerScope::current() { return current_purpose; }

}  // namespace shardtune
