#pragma once
#include "hardware.h"
#include "shardtune/core/work.h"

/// How long one piece of work takes when nothing else is in its way.
namespace shardtune::train::plan {

enum class Path { kLink, kNetwork };

/// A collective that moves data.
struct Transfer {
  double launch_seconds = 0;
  double seconds = 0;  ///< on the path, after the launch
  Path path = Path::kLink;  ///< the slower of the two, which it keeps busy
};

/// Launch of a kernel, then the longer of its arithmetic and its memory traffic. Of row work the traffic alone counts: its few
/// operations are not those of the matrix units. Error(kInternal) for products of a type without a peak.
double compute_seconds(const ComputeWork& work, const Hardware& hardware);

/// All-gather or exchange, in which every pair of ranks has its own equal part: of the bytes of n ranks, m on a node,
/// (n - m) / (n - 1) cross the network and the rest the link, both at the same time.
Transfer transfer(const CollectiveWork& work, const Hardware& hardware);

/// A blocking collective: ceil(log2(ranks)) rounds of a launch each, as in a dissemination barrier, and its few bytes.
double control_seconds(const CollectiveWork& work, const Hardware& hardware);

}  // namespace shardtune::train::plan
