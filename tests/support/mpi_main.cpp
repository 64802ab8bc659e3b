// main() of every test that runs under mpirun: one MPI session, the number of ranks checked against the one the build asked
// for, a failure on any rank fails the program on all.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "support/mpi_world.h"

namespace {
shardtune::comm::Communicator* world_pointer = nullptr;
}

namespace shardtune::testing {
comm::Communicator& world() { return *world_pointer; }
}  // namespace shardtune::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  shardtune::comm::MpiSession session(&argc, &argv);
  const auto communicator = shardtune::comm::make_mpi_communicator();
  world_pointer = communicator.get();
  const char* expected = std::getenv("SHARDTUNE_TEST_RANKS");
  if (expected == nullptr || std::stoi(expected) != communicator->size()) {
    std::cerr << "SHARDTUNE_TEST_RANKS is " << (expected ? expected : "not set") << ", the job has "
              << communicator->size() << " ranks\n";
    shardtune::comm::MpiSession::abort(3);
  }
  if (communicator->rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new shardtune::testing::FailurePrinter(communicator->rank()));
  }
  const int local = RUN_ALL_TESTS();
  int any = 0;
  for (const int result : communicator->gather_values(local)) any |= result;
  return any;
}
