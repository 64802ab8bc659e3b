#include "shardtune/core/shape_only.h"

namespace shardtune::ops {
namespace {

Platform planned = Platform::kCpu;

}  // namespace

void set_planned_platform(Platform platform) { planned = platform; }
Platform planned_platform() { return planned; }

}  // namespace shardtune::ops
