#pragma once
#include <array>
#include <cstddef>
#include <deque>
#include <vector>

#include "durations.h"

namespace shardtune::train::plan {

enum class TransferStream { kGather, kReduce };

/// When the collectives of two streams begin and end. Those of one stream go one after the other, in the order of their starts.
/// The first of both streams go at the same time; while both are bound by the same path, each has half of it. The launch of a
/// collective takes no path. Times are seconds of the caller's clock.
class TransferStreams {
 public:
  struct Interval {
    double begin = 0;
    double end = 0;
    bool ended = false;
  };

  /// Queues a transfer that may begin at `ready`, which never decreases and is not before any end told by end_of(). Returns its
  /// number, counted from 0.
  std::size_t start(TransferStream stream, const Transfer& transfer, double ready);
  /// The end of a transfer, given that nothing more is started before it.
  double end_of(std::size_t number);
  /// Begin and end, once end_of() was asked for it or for a later one of its stream.
  const Interval& interval(std::size_t number) const { return intervals_.at(number); }

 private:
  struct InFlight {
    std::size_t number = 0;
    double launch_left = 0;
    double seconds_left = 0;  ///< with the path alone
    Path path = Path::kLink;
  };

  /// 2 while both streams need the same path, else 1.
  double sharing() const;
  /// Lets `seconds` pass, in which nothing begins or ends.
  void pass(double seconds);
  /// Goes to the next time at which a launch or a transfer ends, but not beyond `limit`.
  void step(double limit);
  void end_finished();
  bool idle() const;

  std::array<std::deque<InFlight>, 2> queues_;
  std::vector<Interval> intervals_;
  double now_ = 0;
};

}  // namespace shardtune::train::plan
