#pragma once
#include <memory>
#include <string>

#include "nccl_device.h"

namespace shardtune::comm {

/// A transfer queued on a stream, known by the event of its end.
class NcclPending : public Pending {
 public:
  NcclPending(std::shared_ptr<NcclDevice> device, OwnedEvent end, std::string what)
      : device_(std::move(device)), end_(std::move(end)), what_(std::move(what)) {}
  void wait() override;
  void wait_on(StreamRef stream) override;

 private:
  std::shared_ptr<NcclDevice> device_;
  OwnedEvent end_;  ///< none: waited for
  std::string what_;
};

}  // namespace shardtune::comm
