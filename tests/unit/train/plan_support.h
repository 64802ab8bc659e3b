#pragma once
#include "../../../src/train/plan/hardware.h"
#include "shardtune/core/work.h"

namespace shardtune::train::plan::test {

/// Hardware for sums in the head: 100 bf16 FLOP/s, 10 bytes/s of memory, 4 of the link, 1 of the network, no latencies, and
/// everything at its peak.
inline Hardware simple_hardware() {
  return {.device = "slide rule",
          .gpus_per_node = 8,
          .bf16_flops_per_second = 100,
          .fp16_flops_per_second = 50,
          .fp32_flops_per_second = 20,
          .memory_bytes = 1000,
          .memory_bytes_per_second = 10,
          .link_bytes_per_second = 4,
          .network_bytes_per_second = 1,
          .pcie_bytes_per_second = 2,
          .collective_launch_seconds = 0,
          .kernel_launch_seconds = 0,
          .matmul_efficiency = 1,
          .attention_efficiency = 1,
          .memory_efficiency = 1,
          .intra_node_efficiency = 1,
          .inter_node_efficiency = 1,
          .pcie_efficiency = 1};
}

/// Works that take so many seconds on it.
inline ComputeWork product(double seconds) {
  return {.kind = ComputeKind::kMatmul, .type = Dtype::kBF16, .flops = 100 * seconds};
}
inline CollectiveWork gather(double seconds) {
  return {.kind = CollectiveKind::kAllGather, .bytes = 4 * seconds, .ranks = 2, .ranks_per_node = 2};
}
inline CollectiveWork exchange(double seconds) {
  return {.kind = CollectiveKind::kExchange, .bytes = 4 * seconds, .ranks = 2, .ranks_per_node = 2};
}
inline CollectiveWork exchange_over_network(double seconds) {
  return {.kind = CollectiveKind::kExchange, .bytes = seconds, .ranks = 2, .ranks_per_node = 1};
}

}  // namespace shardtune::train::plan::test
