#pragma once
#include <mpi.h>

#include <chrono>
#include <string>
#include <vector>

#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

/// Sends and receives under way, with a deadline.
class MpiPending : public Pending {
 public:
  MpiPending(std::vector<MPI_Request> requests, std::chrono::seconds deadline, std::string what)
      : requests_(std::move(requests)), deadline_(deadline), what_(std::move(what)) {}
  void wait() override;

 private:
  std::vector<MPI_Request> requests_;
  std::chrono::seconds deadline_;
  std::string what_;
};

}  // namespace shardtune::comm
