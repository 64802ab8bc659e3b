#include "shared_scratch.h"

namespace shardtune::testing {

SharedScratch::SharedScratch() {
  if (world().rank() == 0) owned_ = std::make_unique<Scratch>();
  path_ = world().broadcast_text(owned_ ? owned_->path().string() : "", 0);
}

SharedScratch::~SharedScratch() { world().barrier(); }

}  // namespace shardtune::testing
