#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "shardtune/core/work.h"

namespace shardtune::train::plan {

/// Tells a listener, if there is one, what it hears, and remembers it.
class WorkRecorder : public WorkListener {
 public:
  explicit WorkRecorder(WorkListener* next) : next_(next) {}

  void compute(const ComputeWork& work) override;
  std::size_t start(const CollectiveWork& work) override;
  void await(std::size_t handle) override;
  void phase(const std::string& name) override;

  /// What comes is a piece of its own.
  void begin_piece();
  /// Whether the piece since begin_piece() is the one before it once more: the same work in the same order, each collective
  /// awaited as far back. False while there is no piece before.
  bool repeats() const { return pieces_ > 1 && now_ == before_; }
  /// Tells the listener the last piece once more.
  void tell_again();

 private:
  enum class Kind { kCompute, kStart, kAwait, kPhase };
  struct Event {
    Kind kind = Kind::kCompute;
    ComputeWork compute{};
    CollectiveWork collective{};
    std::size_t back = 0;  ///< kAwait: collectives started since the awaited one, itself among them
    std::string phase{};

    friend bool operator==(const Event&, const Event&) = default;
  };

  WorkListener* next_;
  std::vector<std::size_t> handles_;  ///< the listener's, by ours
  std::vector<Event> before_, now_;
  std::size_t pieces_ = 0;
};

}  // namespace shardtune::train::plan
