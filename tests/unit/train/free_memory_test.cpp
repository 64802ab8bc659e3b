// What control groups leave of the memory. Files as the kernel writes them, numbers by hand.
#include "free_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "support/scratch.h"

namespace shardtune::train {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(FreeMemory, Version2TakesTheLeastOfAllGroupsAbove) {
  const shardtune::testing::Scratch root;
  write(root / "own", "0::/slurm/job_7/step_0\n");
  write(root / "cg/slurm/job_7/step_0/memory.max", "max\n");
  write(root / "cg/slurm/job_7/step_0/memory.current", "100\n");
  write(root / "cg/slurm/job_7/memory.max", "5000\n");
  write(root / "cg/slurm/job_7/memory.current", "1500\n");
  write(root / "cg/slurm/job_7/memory.stat", "anon 900\nactive_file 200\ninactive_file 300\n");
  write(root / "cg/memory.max", "9000\n");
  write(root / "cg/memory.current", "1000\n");
  EXPECT_EQ(left_in_groups(root / "cg", root / "own"), 5000 - 1500 + 500);
}

TEST(FreeMemory, Version1HasAFolderOfItsOwn) {
  const shardtune::testing::Scratch root;
  write(root / "own", "12:cpu,cpuacct:/slurm\n9:memory:/slurm/uid_0\n");
  write(root / "cg/memory/slurm/uid_0/memory.limit_in_bytes", "7000\n");
  write(root / "cg/memory/slurm/uid_0/memory.usage_in_bytes", "4000\n");
  write(root / "cg/memory/slurm/uid_0/memory.stat", "cache 1\ntotal_active_file 10\ntotal_inactive_file 20\n");
  EXPECT_EQ(left_in_groups(root / "cg", root / "own"), 7000 - 4000 + 30);
}

TEST(FreeMemory, NothingLimits) {
  const shardtune::testing::Scratch root;
  write(root / "own", "0::/\n");
  EXPECT_EQ(left_in_groups(root / "cg", root / "own"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(left_in_groups(root / "cg", root / "none"), std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace shardtune::train
