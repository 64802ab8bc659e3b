#pragma once
#include "shardtune/adapters/lora.h"

namespace shardtune::adapters {

/// The scale is multiplied in fp32: that of every module must fit into it. Error(kUsage) that names the option.
void check_scales(const LoraConfig& lora);

}  // namespace shardtune::adapters
