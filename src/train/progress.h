#pragma once
#include <cstdint>

namespace shardtune::train {

/// A progress bar on standard error, only when that is a terminal; a batch log never sees it. (mpirun gives rank 0 a
/// pseudo-terminal for standard output even when its own is a file, so standard error is the one to ask.)
class ProgressBar {
 public:
  explicit ProgressBar(bool wanted);
  /// Redraws the line.
  void draw(std::int64_t step, std::int64_t total_steps, double seconds_left) const;
  /// Clears the line before something else is printed.
  void clear() const;

 private:
  bool shown_ = false;
};

}  // namespace shardtune::train
