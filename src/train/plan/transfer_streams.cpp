#include "transfer_streams.h"

#include <algorithm>
#include <limits>

#include "shardtune/core/error.h"

namespace shardtune::train::plan {

std::size_t TransferStreams::start(TransferStream stream, const Transfer& transfer, double ready) {
  SHARDTUNE_CHECK(ready >= now_, "a transfer starts at {} s, but {} s are over", ready, now_);
  while (!idle() && now_ < ready) step(ready);
  now_ = ready;
  const std::size_t number = intervals_.size();
  auto& queue = queues_[static_cast<std::size_t>(stream)];
  queue.push_back({number, transfer.launch_seconds, transfer.seconds, transfer.path});
  intervals_.push_back({.begin = now_});  // set again when it has to wait for its turn
  return number;
}

double TransferStreams::end_of(std::size_t number) {
  SHARDTUNE_CHECK(number < intervals_.size(), "transfer {} of {}", number, intervals_.size());
  while (!intervals_[number].ended) step(std::numeric_limits<double>::infinity());
  return intervals_[number].end;
}

bool TransferStreams::idle() const { return queues_[0].empty() && queues_[1].empty(); }

double TransferStreams::sharing() const {
  if (queues_[0].empty() || queues_[1].empty()) return 1;
  const InFlight &one = queues_[0].front(), &other = queues_[1].front();
  return one.launch_left == 0 && other.launch_left == 0 && one.path == other.path ? 2 : 1;
}

void TransferStreams::step(double limit) {
  double next = limit - now_;
  for (const auto& queue : queues_) {
    if (queue.empty()) continue;
    const InFlight& first = queue.front();
    next = std::min(next, first.launch_left > 0 ? first.launch_left : first.seconds_left * sharing());
  }
  pass(next);
  // limit - now_ may have been rounded.
  now_ = std::min(now_ + next, limit);
  end_finished();
}

void TransferStreams::pass(double seconds) {
  const double share = sharing();
  for (auto& queue : queues_) {
    if (queue.empty()) continue;
    InFlight& first = queue.front();
    double& left = first.launch_left > 0 ? first.launch_left : first.seconds_left;
    left -= first.launch_left > 0 ? seconds : seconds / share;
  }
}

void TransferStreams::end_finished() {
  for (auto& queue : queues_) {
    if (queue.empty() || queue.front().launch_left > 0 || queue.front().seconds_left > 0) continue;
    Interval& interval = intervals_[queue.front().number];
    interval.end = now_;
    interval.ended = true;
    queue.pop_front();
    if (!queue.empty()) intervals_[queue.front().number].begin = now_;
  }
}

}  // namespace shardtune::train::plan
