#include "durations.h"

#include <algorithm>
#include <bit>

#include "shardtune/core/error.h"

namespace shardtune::train::plan {
namespace {

double peak_flops_per_second(Dtype type, const Hardware& hardware) {
  switch (type) {
    case Dtype::kBF16: return hardware.bf16_flops_per_second;
    case Dtype::kF16: return hardware.fp16_flops_per_second;
    case Dtype::kF32: return hardware.fp32_flops_per_second;
    default: fail(ErrorClass::kInternal, "the planner has no peak for products of type {}", dtype_name(type));
  }
}

double arithmetic_seconds(const ComputeWork& work, const Hardware& hardware) {
  if (work.kind == ComputeKind::kRows) return 0;
  const double efficiency =
      work.kind == ComputeKind::kMatmul ? hardware.matmul_efficiency : hardware.attention_efficiency;
  return work.flops / (peak_flops_per_second(work.type, hardware) * efficiency);
}

}  // namespace

double compute_seconds(const ComputeWork& work, const Hardware& hardware) {
  SHARDTUNE_CHECK(work.flops >= 0 && work.bytes >= 0, "work of {} FLOPs and {} bytes", work.flops, work.bytes);
  const double traffic = work.bytes / (hardware.memory_bytes_per_second * hardware.memory_efficiency);
  return hardware.kernel_launch_seconds + std::max(arithmetic_seconds(work, hardware), traffic);
}

Transfer transfer(const CollectiveWork& work, const Hardware& hardware) {
  const int ranks = work.ranks, near = work.ranks_per_node;
  SHARDTUNE_CHECK(near >= 1 && near <= ranks && work.bytes >= 0, "{} bytes over {} ranks, {} on a node", work.bytes,
                  ranks, near);
  // One rank alone is on its node, so nothing is divided by zero.
  const double far_share = near == ranks ? 0 : static_cast<double>(ranks - near) / (ranks - 1);
  const double link = work.bytes * (1 - far_share) / (hardware.link_bytes_per_second * hardware.intra_node_efficiency);
  const double network = work.bytes * far_share / (hardware.network_bytes_per_second * hardware.inter_node_efficiency);
  return {.launch_seconds = hardware.collective_launch_seconds,
          .seconds = std::max(link, network),
          .path = network > link ? Path::kNetwork : Path::kLink};
}

double control_seconds(const CollectiveWork& work, const Hardware& hardware) {
  const Transfer moved = transfer(work, hardware);
  const auto rounds = std::bit_width(static_cast<unsigned>(work.ranks) - 1);  // ceil(log2(ranks)), 0 for one rank
  return moved.launch_seconds * static_cast<double>(rounds) + moved.seconds;
}

}  // namespace shardtune::train::plan
