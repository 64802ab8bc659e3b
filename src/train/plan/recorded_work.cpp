#include "recorded_work.h"

#include <utility>

#include "shardtune/core/error.h"

namespace shardtune::train::plan {

void WorkRecorder::compute(const ComputeWork& work) {
  now_.push_back({.kind = Kind::kCompute, .compute = work});
  if (next_ != nullptr) next_->compute(work);
}

std::size_t WorkRecorder::start(const CollectiveWork& work) {
  now_.push_back({.kind = Kind::kStart, .collective = work});
  handles_.push_back(next_ != nullptr ? next_->start(work) : 0);
  return handles_.size() - 1;
}

void WorkRecorder::await(std::size_t handle) {
  SHARDTUNE_CHECK(handle < handles_.size(), "collective {} is awaited, {} were started", handle, handles_.size());
  now_.push_back({.kind = Kind::kAwait, .back = handles_.size() - handle});
  if (next_ != nullptr) next_->await(handles_[handle]);
}

void WorkRecorder::phase(const std::string& name) {
  now_.push_back({.kind = Kind::kPhase, .phase = name});
  if (next_ != nullptr) next_->phase(name);
}

void WorkRecorder::begin_piece() {
  before_ = std::exchange(now_, {});
  ++pieces_;
}

void WorkRecorder::tell_again() {
  if (next_ == nullptr) return;
  for (const Event& event : now_) {
    switch (event.kind) {
      case Kind::kCompute: next_->compute(event.compute); break;
      case Kind::kStart: handles_.push_back(next_->start(event.collective)); break;
      case Kind::kAwait: next_->await(handles_[handles_.size() - event.back]); break;
      case Kind::kPhase: next_->phase(event.phase); break;
    }
  }
}

}  // namespace shardtune::train::plan
