#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "shardtune/core/dtype.h"

/// What a step does, told while it does it: the planner listens, a training run does not.
namespace shardtune {

enum class ComputeKind {
  kMatmul,  ///< matrix products
  kAttention,  ///< the attention kernel, forward or backward
  kRows,  ///< everything that reads and writes rows once: bound by memory
};

struct ComputeWork {
  ComputeKind kind = ComputeKind::kRows;
  Dtype type = Dtype::kF32;  ///< of the operands
  double flops = 0;  ///< a multiplication and an addition are two
  double bytes = 0;  ///< read and written, each operand once

  friend bool operator==(const ComputeWork&, const ComputeWork&) = default;
};

enum class CollectiveKind {
  kAllGather,  ///< bytes: received by this rank
  kExchange,  ///< the moving half of a reduce-scatter; bytes: sent by this rank
  kControl,  ///< small and blocking: scalars, verdicts, barriers
};

struct CollectiveWork {
  CollectiveKind kind = CollectiveKind::kControl;
  double bytes = 0;  ///< that cross between ranks, for this rank
  int ranks = 1;
  int ranks_per_node = 1;  ///< of this group's ranks, how many share a node

  friend bool operator==(const CollectiveWork&, const CollectiveWork&) = default;
};

/// Hears of the work in the order in which the step issues it. A collective may begin when the compute work told before it
/// is done; compute work told after an await begins when that collective has ended.
class WorkListener {
 public:
  virtual ~WorkListener() = default;
  virtual void compute(const ComputeWork& work) = 0;
  /// A handle for await(). A kControl collective blocks: nothing waits for it later.
  virtual std::size_t start(const CollectiveWork& work) = 0;
  virtual void await(std::size_t handle) = 0;
  /// Names what comes, for traces: "forward layer 3".
  virtual void phase(const std::string& name) = 0;
};

/// Null: nobody listens. One for the process.
WorkListener* work_listener();

/// `listener` hears of all work while this object lives.
class ListenScope {
 public:
  explicit ListenScope(WorkListener& listener);
  ~ListenScope();
  ListenScope(const ListenScope&) = delete;
  ListenScope& operator=(const ListenScope&) = delete;

 private:
  WorkListener* before_;
};

}  // namespace shardtune
