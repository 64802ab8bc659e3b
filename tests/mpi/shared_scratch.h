#pragma once
#include <filesystem>
#include <memory>

#include "support/mpi_world.h"
#include "support/scratch.h"

namespace shardtune::testing {

/// A folder that rank 0 makes and all ranks use; goes away with the object. Collective.
class SharedScratch {
 public:
  SharedScratch();
  ~SharedScratch();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::unique_ptr<Scratch> owned_;
  std::filesystem::path path_;
};

/// Runs `action` on rank 0, then lets the others go on. Collective.
template <typename F>
void on_rank_0(F action) {
  if (world().rank() == 0) action();
  world().barrier();
}

}  // namespace shardtune::testing
