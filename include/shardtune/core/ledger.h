#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

/// Every byte of the tensors of a run, by purpose. Filled by the allocator of the step's device (see
/// core/ledger_allocator.h), so nothing that LibTorch allocates escapes it; what is not a tensor (shared memory) is entered
/// by hand.
namespace shardtune {

enum class Purpose : std::uint8_t {
  kOther,  ///< what libraries take for a moment, and what is not tagged: at most 1 % of the peak, a test says
  kWeightShards,
  kGatherBuffers,
  kKeptActivations,  ///< layer inputs and what layers keep for backward
  kStream,  ///< hidden states and their gradient on the way from layer to layer
  kWorkspace,  ///< of a layer, forward or backward
  kLoss,
  kGradients,
  kOptimizer,
  kDequantised,
  kTables,  ///< token ids and rotary tables
  kResult,  ///< what rank 0 puts together to write the result, where its memory is the device's
  kHostPinned,  ///< of the rank's own host memory
  kHostShared,
};
constexpr std::size_t kPurposes = 14;

/// As in metrics.jsonl: "weight_shards".
std::string_view purpose_name(Purpose purpose);

using BytesByPurpose = std::array<std::int64_t, kPurposes>;

/// What the ledger saw since start_window().
struct LedgerPeak {
  std::int64_t bytes = 0;  ///< of the device, all purposes together; the host's (kHostPinned, kHostShared) apart
  std::int64_t host_bytes = 0;
  BytesByPurpose at_peak{};  ///< live bytes at the moment of `bytes`
  BytesByPurpose own{};  ///< the most of each purpose, each at its own moment
  std::string phase;  ///< what the step was doing at the peak
};

/// One for the process; may be used by several threads.
class Ledger {
 public:
  /// Negative bytes are a release; they go to the purpose of the allocation.
  void add(Purpose purpose, std::int64_t bytes);
  /// Live bytes change their purpose: what a layer computed is kept from now on.
  void move(Purpose from, Purpose to, std::int64_t bytes);
  BytesByPurpose live() const;
  /// Since the last start_window().
  LedgerPeak peak() const;
  /// The peak begins anew from what lives now.
  void start_window();
  /// What the run does now, for LedgerPeak::phase.
  void set_phase(std::string phase);

 private:
  mutable std::mutex mutex_;
  BytesByPurpose live_{};
  std::int64_t device_ = 0, host_ = 0;
  std::string phase_ = "start";
  LedgerPeak peak_;
};

Ledger& ledger();

/// What is allocated in this scope, by any thread of the process, is booked under `purpose`. Only the main thread makes these.
class LedgerScope {
 public:
  explicit LedgerScope(Purpose purpose);
  ~LedgerScope();
  LedgerScope(const LedgerScope&) = delete;
  LedgerScope& operator=(const LedgerScope&) = delete;

  static Purpose current();

 private:
  Purpose before_;
};

/// Bytes that are not a tensor's, on the books while this object lives.
class LedgerEntry {
 public:
  LedgerEntry(Purpose purpose, std::int64_t bytes) : purpose_(purpose), bytes_(bytes) { ledger().add(purpose, bytes); }
  ~LedgerEntry() { ledger().add(purpose_, -bytes_); }
  LedgerEntry(const LedgerEntry&) = delete;
  LedgerEntry& operator=(const LedgerEntry&) = delete;

 private:
  Purpose purpose_;
  std::int64_t bytes_;
};

}  // namespace shardtune
