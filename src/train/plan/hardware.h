#pragma once
#include <string>

namespace shardtune::train::plan {

/// What one GPU and its ways to the others can do, as the planner assumes it. Peaks are the vendor's figures without sparsity;
/// an efficiency is the share of its peak, above 0 and up to 1, that real work reaches.
struct Hardware {
  std::string device;
  int gpus_per_node = 0;
  double bf16_flops_per_second = 0;  ///< matrix products; a multiplication and an addition are two
  double fp16_flops_per_second = 0;
  double fp32_flops_per_second = 0;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;  ///< between GPUs of a node: each direction, each GPU
  double network_bytes_per_second = 0;  ///< between nodes: each direction, each GPU's share
  double pcie_bytes_per_second = 0;  ///< between GPU and host: each direction
  double collective_launch_seconds = 0;
  double kernel_launch_seconds = 0;
  double matmul_efficiency = 0;
  double attention_efficiency = 0;
  double memory_efficiency = 0;
  double intra_node_efficiency = 0;
  double inter_node_efficiency = 0;
  double pcie_efficiency = 0;
};

/// Reads an INI file like those in configs/hardware, where GB is 10^9 bytes. Every key must be there, once. Error(kUsage) names
/// the file and the key when one is unknown (with the nearest known one), missing, given twice or of a value that cannot be.
Hardware read_hardware(const std::string& path);

}  // namespace shardtune::train::plan
