#pragma once
#include <string>

#include "shardtune/adapters/lora.h"
#include "shardtune/core/error.h"

namespace shardtune::adapters {

/// The scale is multiplied in fp32: that of every module must fit into it. `what` stands before alpha in the message.
void check_scales(const LoraConfig& lora, ErrorClass error_class, const std::string& what);

}  // namespace shardtune::adapters
