#pragma once
#include <gtest/gtest.h>

#include <iostream>

#include "shardtune/comm/mpi.h"

namespace shardtune::testing {

/// The communicator over all ranks of the test job.
comm::Communicator& world();

/// Prints failures of ranks other than 0, which keep quiet otherwise.
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed())
      std::cerr << "[rank " << rank_ << "] " << (result.file_name() ? result.file_name() : "?") << ":"
                << result.line_number() << ": " << result.summary() << "\n";
  }

 private:
  int rank_;
};

}  // namespace shardtune::testing
