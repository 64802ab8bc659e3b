#include "timeline.h"

#include "durations.h"
#include "shardtune/core/error.h"

namespace shardtune::train::plan {
namespace {

template <typename Enum>
std::size_t index(Enum value) {
  return static_cast<std::size_t>(value);
}

constexpr std::array<std::string_view, kNumComputeKinds> kComputeNames = {"matmul", "attention", "rows"};

}  // namespace

void Timeline::compute(const ComputeWork& work) {
  const double begin = clock_;
  clock_ += compute_seconds(work, hardware_);
  totals_.compute_kind_seconds[index(work.kind)] += clock_ - begin;
  totals_.flops[index(work.kind)] += work.flops;
  totals_.memory_bytes[index(work.kind)] += work.bytes;
  book({.stream = Stream::kCompute,
        .kind = kComputeNames[index(work.kind)],
        .phase = trace_.phases.size() - 1,
        .begin_seconds = begin,
        .end_seconds = clock_,
        .flops = work.flops,
        .bytes = work.bytes});
}

std::size_t Timeline::start(const CollectiveWork& work) {
  totals_.collective_bytes[index(work.kind)] += work.bytes;
  Started started{.work = work, .phase = trace_.phases.size() - 1};
  if (work.kind == CollectiveKind::kControl) {
    control(work);
  } else {
    const auto stream = work.kind == CollectiveKind::kAllGather ? TransferStream::kGather : TransferStream::kReduce;
    started.transfer = streams_.start(stream, transfer(work, hardware_), clock_);
  }
  started_.push_back(started);
  return started_.size() - 1;
}

void Timeline::control(const CollectiveWork& work) {
  const double begin = clock_;
  wait_until(clock_ + control_seconds(work, hardware_));
  book({.stream = Stream::kControl,
        .kind = "control",
        .phase = trace_.phases.size() - 1,
        .begin_seconds = begin,
        .end_seconds = clock_,
        .bytes = work.bytes});
}

void Timeline::await(std::size_t handle) {
  SHARDTUNE_CHECK(handle < started_.size(), "collective {} is waited for, {} were started", handle, started_.size());
  const Started& started = started_[handle];
  if (started.work.kind != CollectiveKind::kControl) wait_until(streams_.end_of(started.transfer));
}

void Timeline::wait_until(double time) {
  if (time <= clock_) return;
  totals_.exposed_seconds += time - clock_;
  clock_ = time;
}

void Timeline::phase(const std::string& name) {
  if (!keep_spans_) return;
  trace_.phases.push_back(name);
}

void Timeline::wait_for_all() {
  for (; booked_ < started_.size(); ++booked_) {
    const Started& started = started_[booked_];
    if (started.work.kind == CollectiveKind::kControl) continue;
    await(booked_);
    const auto& interval = streams_.interval(started.transfer);
    const bool gather = started.work.kind == CollectiveKind::kAllGather;
    book({.stream = gather ? Stream::kGather : Stream::kReduce,
          .kind = gather ? "all-gather" : "exchange",
          .phase = started.phase,
          .begin_seconds = interval.begin,
          .end_seconds = interval.end,
          .bytes = started.work.bytes});
  }
}

void Timeline::book(Span span) {
  totals_.busy_seconds[index(span.stream)] += span.end_seconds - span.begin_seconds;
  if (!keep_spans_) return;
  span.begin_seconds -= origin_;
  span.end_seconds -= origin_;
  trace_.spans.push_back(span);
}

Totals Timeline::totals() {
  wait_for_all();
  totals_.seconds = clock_ - origin_;
  return totals_;
}

void Timeline::reset() {
  wait_for_all();
  totals_ = {};
  trace_ = {.phases = {trace_.phases.back()}, .spans = {}};
  origin_ = clock_;
}

}  // namespace shardtune::train::plan
