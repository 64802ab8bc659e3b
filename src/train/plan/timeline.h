#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware.h"
#include "shardtune/core/work.h"
#include "transfer_streams.h"

namespace shardtune::train::plan {

/// kControl is a row for the eye: such a collective has no stream of its own, the compute stream stands still meanwhile.
enum class Stream { kCompute, kGather, kReduce, kControl };
constexpr std::size_t kNumStreams = 4;
constexpr std::size_t kNumComputeKinds = 3;
constexpr std::size_t kNumCollectiveKinds = 3;

/// One piece of work on a stream. Times count from the last reset.
struct Span {
  Stream stream = Stream::kCompute;
  std::string_view kind;  ///< "matmul", "all-gather", ...; a literal
  std::size_t phase = 0;  ///< index into Trace::phases
  double begin_seconds = 0;
  double end_seconds = 0;
  double flops = 0;
  double bytes = 0;
};

struct Trace {
  std::vector<std::string> phases;
  std::vector<Span> spans;  ///< those of one stream in the order of time
};

/// What came together since the last reset. Arrays are indexed by the enum they are named after.
struct Totals {
  double seconds = 0;  ///< until everything has ended; = compute stream busy + exposed
  std::array<double, kNumStreams> busy_seconds{};
  std::array<double, kNumComputeKinds> compute_kind_seconds{};
  double exposed_seconds = 0;  ///< the compute stream stood waiting for collectives, kControl included
  std::array<double, kNumComputeKinds> flops{};
  std::array<double, kNumComputeKinds> memory_bytes{};  ///< read and written by compute work
  std::array<double, kNumCollectiveKinds> collective_bytes{};  ///< as in CollectiveWork

  double busy(Stream stream) const { return busy_seconds[static_cast<std::size_t>(stream)]; }
};

/// Turns what a step does into the time it would take on given hardware: compute work one after the other, collectives beside
/// it as work.h says, gathers on one stream and exchanges on another. An estimate: it knows no host that falls behind, no
/// other job on the network and no rank slower than the others.
class Timeline : public WorkListener {
 public:
  /// `keep_spans`: for trace(); some 100 bytes for each piece of work.
  explicit Timeline(Hardware hardware, bool keep_spans = false)
      : hardware_(std::move(hardware)), keep_spans_(keep_spans) {}

  void compute(const ComputeWork& work) override;
  /// Error(kInternal) when the ranks of `work` make no sense.
  std::size_t start(const CollectiveWork& work) override;
  /// May be called again, also after a reset(), which changes nothing. Error(kInternal) for a handle that start() did not give.
  void await(std::size_t handle) override;
  void phase(const std::string& name) override;

  /// Waits for all that was started, as a measurement on a device does.
  Totals totals();
  /// Waits for all that was started, then begins to count anew: what comes is a step of its own. The phase goes on.
  void reset();
  /// The spans since the last reset, complete after totals().
  const Trace& trace() const { return trace_; }

 private:
  /// A started collective. Its span comes when its end is known.
  struct Started {
    CollectiveWork work;
    std::size_t transfer = 0;  ///< its number in streams_; none for kControl
    std::size_t phase = 0;
  };

  void control(const CollectiveWork& work);
  /// The compute stream stands until `time`.
  void wait_until(double time);
  void wait_for_all();
  void book(Span span);

  Hardware hardware_;
  bool keep_spans_;
  TransferStreams streams_;
  double clock_ = 0;  ///< all compute work issued so far has ended
  double origin_ = 0;  ///< of the last reset
  std::vector<Started> started_;  ///< by handle
  std::size_t booked_ = 0;  ///< of started_: in totals_ and trace_
  Totals totals_;
  Trace trace_{.phases = {""}, .spans = {}};
};

}  // namespace shardtune::train::plan
